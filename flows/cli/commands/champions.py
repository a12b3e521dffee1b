"""`evertrain champions`, `rollback` and `approve`: which version serves, since when, and why."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import Field
from pydantic_settings import CliPositionalArg

from evertrain_flows.cli.arguments import InStorage
from evertrain_flows.cli.output.listings import Row, print_rows
from evertrain_flows.cli.output.terminal import complain, say
from evertrain_flows.cli.prefect_server import asking_named_server
from evertrain_flows.defaults import tracking_uri_of
from train_core.client.champions import (
    Unreadable,
    approve,
    champions,
    rollback,
    show_champion,
    show_decision,
    versions,
)
from train_core.client.run_summaries import run_status
from train_core.errors import EvertrainError
from train_core.results import ChampionEntry, GateResult, ModelVersion
from train_core.storage.addresses import absolute
from train_core.storage.run_folder import RunFolder

_MAY_BE_CHAMPION = "champion, unless an event that cannot be read names another"


class ChampionsCommand(InStorage):
    """Show which version of a registered model was champion when, by which run, and why."""

    model: CliPositionalArg[str] = Field(description="The registered model's name.")
    versions: bool = Field(
        default=False, description="Show all versions instead, with the gate's decisions."
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the champions, or the versions, oldest first."""
        storage = absolute(self.storage)
        if self.versions:
            rows = [_version_row(*one) for one in versions(storage, self.model)]
        else:
            entries = champions(storage, self.model)
            # An event that cannot be read is seldom one of a champion.
            last = next((one for one in reversed(entries) if one.number is not None), None)
            now = "champion" if entries and entries[-1] is last else _MAY_BE_CHAMPION
            rows = [_champion_row(one, now if one is last else "replaced") for one in entries]
        print_rows(rows, as_json=self.as_json, empty=f"{self.model} has no champion yet")


class _ChangeCommand(InStorage):
    """What the commands take that change a champion."""

    model: CliPositionalArg[str] = Field(description="The registered model's name.")
    reason: str = Field(min_length=1, description="Why; it is recorded.")
    by: str = Field(default="", description="Who decides it. Unset: the user of this process.")
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow's address, whose aliases follow. Unset: the run's own, "
        "MLFLOW_TRACKING_URI, or .evertrain/mlflow.db; empty: leave MLflow alone.",
    )

    def _show_in_mlflow(self, run: str, show: Callable[[str], None]) -> None:
        """Bring MLflow up to date; what it misses now is shown by `evertrain mirror` later."""
        uri = tracking_uri_of(RunFolder(absolute(self.storage), run), self.tracking_uri)
        if not uri:
            return
        try:
            show(uri)
        except EvertrainError as error:
            complain(f"MLflow does not show it yet, `evertrain mirror {run}` tries again: {error}")


class RollbackCommand(_ChangeCommand):
    """Make an earlier version of a registered model the champion again."""

    to: int | None = Field(
        default=None, ge=1, description="The version. Unset: the champion before this one."
    )

    def cli_cmd(self) -> None:
        """Record the new champion, and let MLflow's alias follow."""
        storage = absolute(self.storage)
        entry = rollback(storage, self.model, self.reason, to=self.to, person=self.by)
        say(f"{entry.version.address} is the champion: {entry.why}")
        self._show_in_mlflow(entry.version.run, lambda uri: show_champion(storage, self.model, uri))


class ApproveCommand(_ChangeCommand):
    """Approve, or reject, a version for which the gate has asked a person."""

    version: CliPositionalArg[int] = Field(ge=1, description="The version's number.")
    reject: bool = Field(default=False, description="Reject it: the champion stays.")

    def cli_cmd(self) -> None:
        """Record the answer; an approved version becomes champion."""
        storage = absolute(self.storage)
        is_approved = not self.reject
        result = approve(
            storage, self.model, self.version, self.reason, is_approved=is_approved, person=self.by
        )
        say(result.summary)
        version = result.decision.challenger
        self._follow_in_prefect(RunFolder(storage, version.run))
        self._show_in_mlflow(version.run, lambda uri: show_decision(storage, version, uri))

    def _follow_in_prefect(self, folder: RunFolder) -> None:
        """Resume the flow run that waits for the answer, if one does at the server in use."""
        if run_status(folder).state == "finished":
            # It did not wait: its pipeline has ended.
            return
        # Imported late: Prefect takes a second, and few commands ask it.
        from prefect.client.orchestration import get_client

        from evertrain_flows.flow_runs.following import resume_answered

        followed, why = [], "none waits at this Prefect server"
        try:
            # Prefect's client asks again what a server refuses whose SQLite is locked.
            with asking_named_server("the answer"), get_client(sync_client=True) as client:
                followed = resume_answered(client, folder.storage, folder.name)
        except EvertrainError as error:
            why = str(error)
        if followed:
            say(f"flow run {folder.name} goes on")
            return
        complain(
            f"no flow run of {folder.name} goes on now: {why}. One that waits elsewhere follows "
            "the answer when the next flow run of retrain begins there; if there is none, "
            f"`evertrain runs resume {folder.name}` ends the run"
        )


def _champion_row(entry: ChampionEntry | Unreadable, status: str) -> Row:
    if isinstance(entry, Unreadable):
        return {"number": entry.number, "status": f"cannot be read: {entry.fault}"}
    return {
        "number": entry.number,
        "version": entry.version.version,
        "since": entry.created_at[:19],
        "run": entry.version.run,
        "checkpoint": entry.version.checkpoint,
        "by": entry.by if entry.by != "rollback" else f"rollback ({entry.decided_by})",
        "why": entry.reason,
        "status": status,
    }


def _version_row(version: ModelVersion | Unreadable, result: GateResult | Unreadable | None) -> Row:
    if isinstance(version, Unreadable):
        return {"version": version.number, "status": f"cannot be read: {version.fault}"}
    row: Row = {
        "version": version.version,
        "registered": version.created_at[:19],
        "run": version.run,
        "checkpoint": version.checkpoint,
    }
    if result is None:
        return row | {"status": "no decision", "compared with": None, "why": None}
    if isinstance(result, Unreadable):
        return row | {"status": f"cannot be read: {result.fault}"}
    champion = result.decision.champion
    compared_with = champion.version if champion else None
    return row | {
        "status": result.status,
        "compared with": compared_with,
        "why": result.decision.why,
    }
