"""`evertrain runs`: list, look at, resume, stop, extend, fork and delete them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, Field
from pydantic_settings import CliApp, CliPositionalArg, CliSubCommand

from flows.commands.output import Row, print_mapping, print_rows, say
from flows.parameters import (
    RetrainParameters,
    absolute,
    default_storage,
    refuse_driven,
    tracking_uri_of,
)
from tasks.live import last_reading
from train_core.config import TrainConfig
from train_core.errands import delete_tracking
from train_core.errors import ConfigError, EvertrainError
from train_core.policy.selection import Candidate, ranked
from train_core.storage import lease
from train_core.storage.names import RUN_JSON
from train_core.storage.orphans import abort_uploads
from train_core.storage.pins import pinned
from train_core.storage.run_folder import Checkpoint, RunFolder, said_in
from train_core.storage.stop import ask_to_stop
from train_core.storage.store import Store

_AT_ONCE = 16
_SHORT = 8


class InStorage(BaseModel):
    """Arguments of all commands that look into a storage."""

    storage: str = Field(
        default_factory=default_storage,
        description="Folder of the runs; EVERTRAIN_STORAGE, or .evertrain/runs.",
    )


class ListCommand(InStorage):
    """List the runs of a storage."""

    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the runs."""
        list_runs(absolute(self.storage), as_json=self.as_json)


class StatusCommand(InStorage):
    """Tell where a run is."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the run's state."""
        folder = existing(absolute(self.storage), self.run)
        print_mapping(status(folder, as_json=self.as_json), as_json=self.as_json)


class DeleteCommand(InStorage):
    """Delete a run: its folder and its side in MLflow."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow's address. Unset: the run's own, MLFLOW_TRACKING_URI, or "
        ".evertrain/mlflow.db; empty: leave MLflow alone.",
    )
    yes: bool = Field(default=False, description="Do not ask.")

    def cli_cmd(self) -> None:
        """Delete the run, MLflow's side first: what fails can be tried again."""
        folder = existing(absolute(self.storage), self.run)
        refuse_driven(folder)
        if not self.yes and not _agrees(f"Delete {folder.url}?"):
            raise ConfigError("nothing was deleted; --yes does not ask")
        # Also a run whose driver died elsewhere can be had, once its heart stood still.
        held = lease.acquire(folder.store, folder.name)
        with lease.alive(held):
            if tracking_uri := tracking_uri_of(folder, self.tracking_uri):
                delete_tracking(folder.url, tracking_uri)
        abort_uploads(folder)
        # run.json first: without it the run is no more.
        folder.store.delete(RUN_JSON)
        folder.store.delete("")
        say(f"deleted {folder.url}")


class ResumeCommand(InStorage):
    """Go on with a run, as it was asked last, from its last commit."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    verbose: bool = Field(default=False, description="Show Prefect's, Ray's and the workers' log.")

    def cli_cmd(self) -> None:
        """Run the pipeline to its end."""
        from flows.pipeline import run_pipeline

        folder = existing(absolute(self.storage), self.run)
        run_pipeline(RetrainParameters.of_run(folder), verbose=self.verbose)


class StopCommand(InStorage):
    """Have a run that is being driven save and end, wherever that is."""

    run: CliPositionalArg[str] = Field(description="The run's name.")

    def cli_cmd(self) -> None:
        """Leave the request; the training looks for it about once a second."""
        folder = existing(absolute(self.storage), self.run)
        holder = lease.holder_of(folder.store)
        if holder is None:
            raise ConfigError(f"nobody drives run {self.run!r}: see `evertrain runs status`")
        ask_to_stop(folder.store, lease.newest_attempt(folder.store), "evertrain runs stop")
        say(f"{holder} is asked to save and to stop run {self.run}")


class ExtendCommand(InStorage):
    """Train a run for more epochs. A learning-rate schedule is not stretched: it holds its end."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    epochs: str = Field(
        description="Epochs in all, as `20`, or more than it has, as `+5`.",
        pattern=r"^\+?[1-9]\d*$",
    )
    verbose: bool = Field(default=False, description="Show Prefect's, Ray's and the workers' log.")

    def cli_cmd(self) -> None:
        """Run the pipeline to the new end."""
        from flows.pipeline import run_pipeline

        folder = existing(absolute(self.storage), self.run)
        epochs = int(self.epochs)
        trained = [checkpoint.manifest.epoch for checkpoint in folder.checkpoints()]
        has = max(folder.record().config.epochs, *trained, 0)
        if self.epochs.startswith("+"):
            epochs += has
        if epochs <= has:
            raise ConfigError(
                f"run {self.run!r} has {has} epochs already: ask for more, as --epochs {has + 4} "
                "or --epochs +4"
            )
        run_pipeline(RetrainParameters.of_run(folder, epochs=epochs), verbose=self.verbose)


class ForkCommand(InStorage):
    """Begin a new run with a checkpoint of another; it goes on exactly as that one did."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    at: int = Field(ge=0, description="The step of the checkpoint to begin with.")
    to: str = Field(default="", description="The new run's name; empty: RUN-at-STEP.")

    def cli_cmd(self) -> None:
        """Copy the checkpoint and its journal."""
        folder = existing(absolute(self.storage), self.run)
        found = {one.manifest.step: one for one in folder.checkpoints()}
        if self.at not in found:
            steps = ", ".join(map(str, found)) or "none"
            raise ConfigError(
                f"run {self.run!r} has no checkpoint of step {self.at}; it has {steps}"
            )
        origin = found[self.at]
        try:
            with pinned(folder.store, [origin.name], "fork"):
                fork = folder.fork(origin, self.to or f"{self.run}-at-{self.at}")
        except FileExistsError as error:
            raise ConfigError(f"{error}: choose another name with --to") from error
        say(f"{fork.url} begins after step {self.at}; `evertrain runs resume {fork.name}` goes on")


class RunsCommand(BaseModel):
    """List, look at, resume, stop, extend, fork and delete runs."""

    list: CliSubCommand[ListCommand] = Field(description="List the runs of a storage.")
    status: CliSubCommand[StatusCommand] = Field(description="Tell where a run is.")
    resume: CliSubCommand[ResumeCommand] = Field(description="Go on with a run.")
    stop: CliSubCommand[StopCommand] = Field(description="Have a run save and end.")
    extend: CliSubCommand[ExtendCommand] = Field(description="Train a run for more epochs.")
    fork: CliSubCommand[ForkCommand] = Field(description="Begin a run with another's checkpoint.")
    delete: CliSubCommand[DeleteCommand] = Field(description="Delete a run.")

    def cli_cmd(self) -> None:
        """Run the command that was named."""
        CliApp.run_subcommand(self)


def existing(storage: str, run: str) -> RunFolder:
    """The run's folder. Raises ConfigError if there is no such run."""
    folder = RunFolder(storage, run)
    if not folder.exists():
        raise ConfigError(f"there is no run {run!r} in {storage}: see `evertrain runs list`")
    return folder


def _agrees(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").lower() in ("y", "yes")
    except EOFError:
        return False


def list_runs(storage: str, *, as_json: bool) -> None:
    """Print the runs of a storage, oldest first."""
    with ThreadPoolExecutor(_AT_ONCE, "read") as threads:
        listed = threads.map(partial(_row_or_fault, storage), Store(storage).names())
        rows = sorted(filter(None, listed), key=itemgetter("created"))
    print_rows(rows, as_json=as_json, empty=f"no runs in {storage}{_why_there(storage)}")


def _why_there(storage: str) -> str:
    """Why the runs are looked for in that folder, if the command did not name it."""
    if storage != default_storage():
        return ""
    if os.environ.get("EVERTRAIN_STORAGE"):
        return ", which EVERTRAIN_STORAGE names"
    return ": EVERTRAIN_STORAGE is not set, so runs are looked for below the current directory"


def _row_or_fault(storage: str, name: str) -> Row | None:
    """The run in a list, or what is wrong with it; None if there is no run of that name.

    One that cannot be read hides no other.
    """
    try:
        if not Store(storage).exists(f"{name}/{RUN_JSON}"):
            return None
        return row(RunFolder(storage, name))
    except (EvertrainError, OSError) as error:
        return {"run": name, "created": "", "state": f"cannot be read: {error}"}


def row(folder: RunFolder) -> Row:
    """A run in a list."""
    record, report = folder.record(), folder.report()
    checkpoints = folder.checkpoints()
    train = record.datasets.get("train", {})
    return {
        "run": folder.name,
        "created": f"{record.created_at[:16]}Z",
        "workload": record.config.workload.rpartition(":")[2],
        "step": checkpoints[-1].name.step if checkpoints else 0,
        "best": best_value(checkpoints, record.config),
        "test": tested_value(report, record.config),
        "metric": record.config.monitor,
        "samples": train.get("samples"),
        "data": (train.get("digest") or "")[:_SHORT] or None,
        "state": state(folder, checkpoints, report),
    }


def tested_value(report: dict[str, Any] | None, config: TrainConfig) -> float | None:
    """The best checkpoint's value of the monitored metric on the test split, by the report."""
    measured = (report or {}).get("test_metrics")
    name = config.monitor.removeprefix("validation/")
    value = measured.get(name) if isinstance(measured, dict) else None
    return value if isinstance(value, float) else None


def status(folder: RunFolder, *, as_json: bool) -> dict[str, Any]:
    """A run's state, its newest checkpoint, and what its training tells of itself.

    For people that is a line; for programs all of it. What an earlier attempt told is left out.
    """
    found = row(folder) | {"url": folder.url, "checkpoints": len(folder.checkpoints())}
    if holder := lease.holder_of(folder.store):
        live = last_reading(folder)
        if live and live.attempt < lease.newest_attempt(folder.store):
            live = None
        told = live and (live.model_dump() if as_json else f"{live.stage}: {live}")
        found |= {"driven by": str(holder), "live": told}
    return found


def state(folder: RunFolder, checkpoints: list[Checkpoint], report: dict[str, Any] | None) -> str:
    """`running`, `finished` or `interrupted`."""
    if lease.holder_of(folder.store):
        return "running"
    if report is None:
        return "interrupted"
    reported = said_in(report, folder, int, "train", "step")
    # A run that was extended has the report of its first end.
    is_whole = all(reported >= one.manifest.step for one in checkpoints[-1:])
    return "finished" if is_whole else "interrupted"


def best_value(checkpoints: list[Checkpoint], config: TrainConfig) -> float | None:
    """The best checkpoint's value of the monitored metric."""
    candidates = [Candidate(str(c.name), c.name.step, c.manifest.metrics) for c in checkpoints]
    order = ranked(candidates, config.monitor, config.monitor_order)
    return order[0].metrics.get(config.monitor) if order else None
