"""What can be done with the runs of a storage: the functions behind the commands.

>>> from train_core import open_run, run_status
>>> run_status(open_run("s3://bucket/runs", "digits")).state  # doctest: +SKIP

All of them raise StorageError where the storage does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from train_core.client.isolated import delete_tracking, unregistered_checkpoints
from train_core.client.live import Live, last_reading
from train_core.config import TrainConfig
from train_core.errors import ConfigError, EvertrainError, RunBusyError, StorageError
from train_core.policy.metric_names import VALIDATION, short_name
from train_core.policy.retention import RetentionRules
from train_core.policy.selection import Candidate, ranked
from train_core.results import Result
from train_core.storage.cleanup.orphans import abort_uploads
from train_core.storage.cleanup.prune import Finding, Pruning
from train_core.storage.coordination import lease, pins
from train_core.storage.coordination.holder import Holder
from train_core.storage.coordination.stop_request import ask_to_stop
from train_core.storage.objects.retries import SHORT
from train_core.storage.objects.store import Store
from train_core.storage.records.names import RUN_JSON, CheckpointName
from train_core.storage.run_folder import Checkpoint, RunFolder, said_in
from train_core.storage.run_writer import RunWriter, begin_attempt, fork_checkpoint

_READ_AT_ONCE = 16
_DIGEST_SHOWN = 8


class RunSummary(Result):
    """A run in a list. Of one that cannot be read, only `run`, `created` and `state` are set."""

    run: str
    created: str
    """UTC, to the minute; empty if it cannot be read."""
    workload: str = ""
    step: int = 0
    """Of the newest checkpoint."""
    best: float | None = None
    """The monitored metric of the best checkpoint on validation."""
    test: float | None = None
    """The monitored metric of the best checkpoint on the test split."""
    metric: str = ""
    samples: int | None = None
    """Of the training split."""
    data: str | None = None
    """The first digits of the training split's digest."""
    state: str
    """`running`, `finished`, `interrupted`, or what is wrong with it."""


class RunStatus(RunSummary):
    """Where a run is."""

    url: str
    checkpoints: int
    driven_by: str | None = None
    """Who drives the run; None: nobody does."""
    live: Live | None = None
    """What the training told of itself last."""


class CheckpointVerdict(Result):
    """Whether a checkpoint is what was committed."""

    checkpoint: str
    files: int | None = None
    journal: int | None = None
    """Journal segments."""
    faults: list[str] = []
    """What is wrong with it; empty: nothing."""


def open_run(storage: str, run: str) -> RunFolder:
    """The run of that name in a storage, a path or any fsspec URL.

    Raises ConfigError if there is none.
    """
    folder = RunFolder(storage, run)
    if not folder.exists():
        raise ConfigError(f"there is no run {run!r} in {storage}: see `evertrain runs list`")
    return folder


def list_runs(storage: str) -> list[RunSummary]:
    """The runs of a storage, oldest first. One that cannot be read hides no other."""
    with ThreadPoolExecutor(_READ_AT_ONCE, "read") as threads:
        listed = list(threads.map(partial(_summary_or_fault, storage), Store(storage).names()))
    return sorted((one for one in listed if one), key=lambda one: one.created)


def run_status(
    folder: RunFolder,
) -> RunStatus:
    """Where a run is. What an earlier attempt told of itself is left out."""
    found = RunStatus(
        **_summary(folder).model_dump(),
        url=folder.url,
        checkpoints=len(folder.checkpoints()),
    )
    holder = lease.holder_of(folder.store)
    if holder is None:
        return found
    live = last_reading(folder)
    if live and live.attempt < lease.newest_attempt(folder.store):
        live = None
    return found.model_copy(update={"driven_by": str(holder), "live": live})


def stop_run(folder: RunFolder, *, reason: str = "stop_run") -> Holder:
    """Ask whoever drives the run to save and end; who that is.

    The driver looks for the request about once a second. Raises ConfigError if nobody drives it.
    """
    holder = lease.holder_of(folder.store)
    if holder is None:
        raise ConfigError(f"nobody drives run {folder.name!r}: see `evertrain runs status`")
    ask_to_stop(folder.store, lease.newest_attempt(folder.store), reason)
    return holder


def epochs_after(folder: RunFolder, epochs: str) -> int:
    """The epochs that an extended run has in all: `epochs` is their number, or `+5` for five more.

    Raises ConfigError if the run has as many already.
    """
    trained = [checkpoint.manifest.epoch for checkpoint in folder.checkpoints()]
    has = max(folder.record().config.epochs, *trained, 0)
    wanted = int(epochs) + (has if epochs.startswith("+") else 0)
    if wanted <= has:
        raise ConfigError(
            f"run {folder.name!r} has {has} epochs already: ask for more, as --epochs {has + 4} "
            "or --epochs +4"
        )
    return wanted


def fork_run(folder: RunFolder, at: int, to: str = "") -> RunFolder:
    """A new run that begins with the checkpoint of step `at`; it goes on exactly as that one did.

    Its name is `to`, or RUN-at-STEP. Raises ConfigError if there is no such checkpoint, or a run of
    that name already.
    """
    found = {one.step: one for one in folder.checkpoints()}
    if at not in found:
        steps = ", ".join(map(str, found)) or "none"
        raise ConfigError(f"run {folder.name!r} has no checkpoint of step {at}; it has {steps}")
    origin = found[at]
    try:
        with pins.pinned(folder.store, [origin.name], "fork"):
            return fork_checkpoint(folder, origin, to or f"{folder.name}-at-{at}")
    except FileExistsError as error:
        raise ConfigError(f"{error}: choose another name with --to") from error


def refuse_driven(folder: RunFolder) -> None:
    """Raise RunBusyError if a process of this machine drives the run; others are not waited for."""
    try:
        holder = lease.holder_of(folder.store.with_retries(SHORT))
    except StorageError:
        # Whoever goes on says what is wrong with it.
        return
    if holder is not None and holder.is_local:
        raise RunBusyError(folder.name, str(holder))


def delete_run(folder: RunFolder, tracking_uri: str = "") -> None:
    """Delete a run's folder and, with a `tracking_uri`, its side in MLflow.

    MLflow's side goes first: what fails can be tried again. Raises RunBusyError if somebody drives
    the run, and StageError if MLflow does not answer or refuses.
    """
    refuse_driven(folder)
    # Also a run whose driver died elsewhere can be had, once its heart stood still.
    held = lease.acquire(folder.store, folder.name)
    with lease.alive(held):
        if tracking_uri:
            delete_tracking(folder.url, tracking_uri)
    abort_uploads(folder)
    RunWriter(folder, held.attempt).delete_run()


def verify_run(
    folder: RunFolder, checkpoint: CheckpointName | None = None
) -> Iterator[CheckpointVerdict]:
    """Read every file of a run's checkpoints, or of one, and compare it with what was committed."""
    for one in folder.checkpoints():
        if checkpoint not in (None, one.name):
            continue
        faults = folder.faults(one)
        if faults and not folder.exists_checkpoint(one.name):
            continue  # the training deleted it meanwhile
        manifest = one.manifest
        yield CheckpointVerdict(
            checkpoint=str(one.name),
            files=len(manifest.files),
            journal=len(manifest.journal),
            faults=faults,
        )
    known_bad = {
        **{text: f"damaged: {reason}" for text, reason in folder.damaged().items()},
        **{text: f"quarantined: {reason}" for text, reason in folder.quarantined().items()},
    }
    for text, fault in known_bad.items():
        if checkpoint is None or text == str(checkpoint):
            yield CheckpointVerdict(checkpoint=text, faults=[fault])


def prune_run(
    folder: RunFolder,
    *,
    rules: RetentionRules | None = None,
    dry_run: bool = False,
    ignore_pins_elsewhere: bool = False,
    release_models_in: str = "",
) -> list[Finding]:
    """Delete what no rule and nobody keeps of a run; what went, and why each other thing stays.

    `rules` are the run's own if they are not given. `dry_run` only tells, and writes nothing.
    `ignore_pins_elsewhere`: processes on other machines that pinned checkpoints are known to have
    ended. `release_models_in` is the address of an MLflow: checkpoints that stay for their model
    there are let go if no registered version points to it; if MLflow does not answer, TrackingError
    is raised and nothing is deleted. Raises RunBusyError if somebody drives the run.
    """
    ignored = _ignored_pins(folder, elsewhere=ignore_pins_elsewhere, models_in=release_models_in)
    asked = rules or folder.asked().config.retention
    pruning = Pruning(folder, asked, datetime.now(UTC), ignored)
    if dry_run:
        return pruning.survey(lease.newest_attempt(folder.store) + 1)
    held = begin_attempt(folder)
    with lease.alive_until_released(held):
        return pruning.carry_out(held.attempt)


def retention_rules(folder: RunFolder, overrides: Mapping[str, Any]) -> RetentionRules:
    """The run's retention rules, with `overrides`, by their names, for those that are not None."""
    given = {name: one for name, one in overrides.items() if one is not None}
    return replace(folder.asked().config.retention, **given)


def _ignored_pins(folder: RunFolder, *, elsewhere: bool, models_in: str) -> set[str]:
    found = pins.valid_pins(folder.store)
    ignored: list[Callable[[pins.Found], bool]] = []
    if elsewhere:
        ignored.append(lambda pin: pin.is_elsewhere)
    if models_in and any(pin.who == pins.MLFLOW_MODEL for pin in found):
        released = unregistered_checkpoints(folder.url, models_in)
        ignored.append(lambda pin: pin.who == pins.MLFLOW_MODEL and pin.checkpoint in released)
    return {pin.key for pin in found if any(is_ignored(pin) for is_ignored in ignored)}


def _summary_or_fault(storage: str, name: str) -> RunSummary | None:
    """The run in a list, or what is wrong with it; None if there is no run of that name."""
    try:
        if not Store(storage).exists(f"{name}/{RUN_JSON}"):
            return None
        return _summary(RunFolder(storage, name))
    except (EvertrainError, OSError) as error:
        return RunSummary(run=name, created="", state=f"cannot be read: {error}")


def _summary(folder: RunFolder) -> RunSummary:
    record, report = folder.record(), folder.report()
    checkpoints = folder.checkpoints()
    train = record.datasets.get("train", {})
    return RunSummary(
        run=folder.name,
        created=f"{record.created_at[:16]}Z",
        workload=record.config.workload.rpartition(":")[2],
        step=checkpoints[-1].step if checkpoints else 0,
        best=_best_value(checkpoints, record.config),
        test=_tested_value(report, record.config),
        metric=record.config.monitor,
        samples=train.get("samples"),
        data=(train.get("digest") or "")[:_DIGEST_SHOWN] or None,
        state=_state(folder, checkpoints, report),
    )


def _state(folder: RunFolder, checkpoints: list[Checkpoint], report: dict[str, Any] | None) -> str:
    if lease.holder_of(folder.store):
        return "running"
    if report is None:
        return "interrupted"
    reported = said_in(report, folder, int, "train", "step")
    # A run that was extended has the report of its first end.
    is_whole = all(reported >= one.step for one in checkpoints[-1:])
    return "finished" if is_whole else "interrupted"


def _best_value(checkpoints: list[Checkpoint], config: TrainConfig) -> float | None:
    """The best checkpoint's value of the monitored metric."""
    candidates = [Candidate(str(c.name), c.step, c.manifest.metrics) for c in checkpoints]
    order = ranked(candidates, config.monitor, config.monitor_order)
    return order[0].metrics.get(config.monitor) if order else None


def _tested_value(report: dict[str, Any] | None, config: TrainConfig) -> float | None:
    """The best checkpoint's value of the monitored metric on the test split, by the report."""
    measured = (report or {}).get("test_metrics")
    name = short_name(VALIDATION, config.monitor)
    value = measured.get(name) if isinstance(measured, dict) else None
    return value if isinstance(value, float) else None
