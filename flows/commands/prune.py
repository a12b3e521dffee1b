"""`evertrain prune`: delete what no rule and nobody keeps of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from flows.commands.look import find
from flows.commands.output import Row, print_rows
from flows.commands.runs import InStorage
from flows.parameters import absolute, tracking_uri_of
from train_core.errands import unregistered_checkpoints
from train_core.errors import ConfigError
from train_core.policy.retention import RetentionRules
from train_core.storage import lease, pins
from train_core.storage.prune import Finding, Pruning
from train_core.storage.run_folder import RunFolder


class Overrides(BaseModel):
    """Retention rules of one call in place of the run's own."""

    keep_last: int | None = Field(
        default=None, ge=1, description="Checkpoints to keep, counted from the newest."
    )
    keep_best: int | None = Field(
        default=None, ge=1, description="Checkpoints to keep, counted from the best."
    )
    keep_every_steps: int | None = Field(
        default=None, ge=0, description="Keep those whose step is a multiple of this; 0: no rule."
    )
    keep_newer_than_s: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Keep those younger than so many seconds; 0: no rule.",
    )

    def over(self, rules: RetentionRules) -> RetentionRules:
        """The run's rules, with those that this call was given."""
        given = {name: getattr(self, name) for name in Overrides.model_fields}
        return replace(rules, **{name: one for name, one in given.items() if one is not None})


class PruneCommand(Overrides, InStorage):
    """Delete checkpoints that no rule keeps, and what dead attempts left; tell why others stay."""

    run: CliPositionalArg[str] = Field(description="A run's name, or its path or URL.")
    dry_run: bool = Field(default=False, description="Only tell; nothing is written.")
    ignore_pins_elsewhere: bool = Field(
        default=False,
        description="Processes on other machines that pinned checkpoints are known to have ended.",
    )
    release_models: bool = Field(
        default=False,
        description="Let go of checkpoints that stay for their model in MLflow, if no registered "
        "version points to it. MLflow is asked; if it does not answer, nothing is deleted.",
    )
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow's address. Unset: the run's own, MLFLOW_TRACKING_URI, or "
        ".evertrain/mlflow.db.",
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print what goes and why each other thing stays. Raises RunBusyError if it is driven."""
        folder, name = find(self.run, absolute(self.storage))
        if name is not None:
            raise ConfigError(f"{self.run!r} is a checkpoint: name the run that is to be pruned")
        pruning = Pruning(
            folder,
            self.over(folder.asked().config.retention),
            datetime.now(UTC),
            self._ignored_pins(folder),
        )
        findings = self._survey(pruning) if self.dry_run else _carry_out(pruning)
        rows = [_row(finding, is_done=not self.dry_run) for finding in findings]
        print_rows(rows, as_json=self.as_json, empty=f"nothing to prune in {folder.url}")

    @staticmethod
    def _survey(pruning: Pruning) -> list[Finding]:
        return pruning.survey(lease.newest_attempt(pruning.folder.store) + 1)

    def _ignored_pins(self, folder: RunFolder) -> set[str]:
        found = pins.valid_pins(folder.store)
        ignored: list[Callable[[pins.Found], bool]] = []
        if self.ignore_pins_elsewhere:
            ignored.append(lambda pin: pin.is_elsewhere)
        if self.release_models and any(pin.who == pins.MLFLOW_MODEL for pin in found):
            released = unregistered_checkpoints(
                folder.url, tracking_uri_of(folder, self.tracking_uri)
            )
            ignored.append(lambda pin: pin.who == pins.MLFLOW_MODEL and pin.checkpoint in released)
        return {pin.key for pin in found if any(is_ignored(pin) for is_ignored in ignored)}


def _carry_out(pruning: Pruning) -> list[Finding]:
    held = pruning.folder.begin_attempt()
    with lease.beating(held):
        return pruning.carry_out(held.attempt)


def _row(finding: Finding, *, is_done: bool) -> Row:
    goes = "deleted" if is_done else "goes"
    return {
        "what": finding.name,
        "kind": finding.kind,
        "verdict": goes if finding.goes else "stays",
        "MB": round(finding.size_bytes / 1e6, 3) if finding.kind == "checkpoint" else None,
        "why": finding.why,
    }
