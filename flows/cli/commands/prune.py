"""`evertrain prune`: delete checkpoints that no rule and no pin keeps, and dead attempts' files."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_settings import CliPositionalArg

from evertrain_flows.cli.arguments import InStorage
from evertrain_flows.cli.output.listings import Row, print_rows
from evertrain_flows.defaults import tracking_uri_of
from train_core.client.runs import prune_run, retention_rules
from train_core.errors import ConfigError
from train_core.policy.checkpoints.retention import RetentionOptions
from train_core.policy.options import overrides_of
from train_core.storage.addresses import absolute, find
from train_core.storage.cleanup.prune import Finding

Overrides: Any = overrides_of(RetentionOptions)
"""Retention rules of one call in place of the run's own."""


class PruneCommand(Overrides, InStorage):  # type: ignore[misc]  # made from the options
    """Delete checkpoints that no rule keeps, and what dead attempts left; say why others stay."""

    run: CliPositionalArg[str] = Field(description="A run's name, or its path or URL.")
    dry_run: bool = Field(default=False, description="Only list; write and delete nothing.")
    ignore_pins_elsewhere: bool = Field(
        default=False,
        description="Ignore pins of processes on other machines: you know that these have ended.",
    )
    release_models: bool = Field(
        default=False,
        description="Remove the pins of checkpoints whose models in MLflow have no registered "
        "version. If MLflow does not answer, nothing is deleted.",
    )
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow's address. Unset: the run's own, MLFLOW_TRACKING_URI, or "
        ".evertrain/mlflow.db.",
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print which files go, and why others stay. Raises RunBusyError if the run is driven."""
        folder, name = find(self.run, absolute(self.storage))
        if name is not None:
            raise ConfigError(f"{self.run!r} is a checkpoint: name the run that is to be pruned")
        release_in = tracking_uri_of(folder, self.tracking_uri) if self.release_models else ""
        overrides = {name: getattr(self, name) for name in Overrides.model_fields}
        findings = prune_run(
            folder,
            rules=retention_rules(folder, overrides),
            dry_run=self.dry_run,
            ignore_pins_elsewhere=self.ignore_pins_elsewhere,
            release_models_in=release_in,
        )
        rows = [_row(finding, is_done=not self.dry_run) for finding in findings]
        print_rows(rows, as_json=self.as_json, empty=f"nothing to prune in {folder.url}")


def _row(finding: Finding, *, is_done: bool) -> Row:
    goes = "deleted" if is_done else "goes"
    return {
        "what": finding.name,
        "kind": finding.kind,
        "verdict": goes if finding.goes else "stays",
        "MB": round(finding.size_bytes / 1e6, 3) if finding.kind == "checkpoint" else None,
        "why": finding.why,
    }
