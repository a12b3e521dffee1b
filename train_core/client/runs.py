"""What can be done to a run: open, stop, extend, fork, delete and prune it, as functions.

>>> from train_core import open_run, stop_run
>>> stop_run(open_run("s3://bucket/runs/digits"))  # doctest: +SKIP

All of them raise StorageError where the storage does not answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from train_core.champion.log import ModelLog, championships
from train_core.client.isolated import delete_tracking, forget_models, unregistered_checkpoints
from train_core.client.run import Run, folder_of
from train_core.errors import ConfigError, RunBusyError, StorageError
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.storage.addresses import absolute
from train_core.storage.cleanup.orphans import abort_uploads
from train_core.storage.cleanup.prune import Finding, Pruning
from train_core.storage.coordination import lease, pins
from train_core.storage.coordination.holder import Holder, Life, judge
from train_core.storage.coordination.stop_request import ask_to_stop
from train_core.storage.fork import fork_checkpoint
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.run_checks import check_no_link
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt
from train_core.timing import UPKEEP


def open_run(address: str | os.PathLike[str], run: str | None = None) -> Run:
    """The run at an address, a path or any fsspec URL; with `run`, of that name in the storage.

    >>> open_run("s3://bucket/runs/digits")  # doctest: +SKIP
    >>> open_run("s3://bucket/runs", "digits")  # doctest: +SKIP

    Raises ConfigError if there is none.
    """
    address = os.fspath(address)
    folder = RunFolder.at(absolute(address)) if run is None else RunFolder(address, run)
    if not folder.exists():
        raise ConfigError(
            f"there is no run {folder.name!r} in {folder.storage}: give <storage>/<run>; "
            "`evertrain runs list --storage STORAGE` shows the runs of a storage"
        )
    return Run(folder)


def stop_run(run: Run | RunFolder, *, reason: str = "stop_run") -> Holder:
    """Request that the run saves and ends; return the process that drives it.

    The driver looks for the request about once a second. Raises ConfigError if no process drives
    it.
    """
    folder = folder_of(run)
    holder = lease.holder_of(folder.store)
    if holder is None:
        raise ConfigError(f"no process drives run {folder.name!r}: see `evertrain runs status`")
    ask_to_stop(folder.store, lease.newest_attempt(folder.store), reason)
    return holder


def epochs_after(folder: RunFolder, epochs: str) -> int:
    """The number of epochs of an extended run: `epochs` itself, or five more than it has for `+5`.

    Raises ConfigError if the run has as many already, and for a training function.
    """
    newest, config = folder.newest(), folder.record().config
    if not config.has_effect("epochs"):
        raise ConfigError(
            f"run {folder.name!r} is of a training function, which decides on its epochs itself: "
            f"begin a new run with another train_loop_config (`--init-from {folder.name}` gives it "
            f"the best checkpoint), or go on in a copy (`evertrain runs fork {folder.name}`)"
        )
    has = max(config.epochs, newest.manifest.epoch if newest else 0)
    wanted = int(epochs) + (has if epochs.startswith("+") else 0)
    if wanted <= has:
        raise ConfigError(
            f"run {folder.name!r} has {has} epochs already: ask for more, as --epochs {has + 4} "
            "or --epochs +4"
        )
    return wanted


def fork_run(run: Run | RunFolder, at: int, to: str = "") -> Run:
    """A new run that begins with the checkpoint of step `at`; it goes on exactly as that one did.

    Its name is `to`, or RUN-at-STEP. Raises ConfigError if there is no such checkpoint, or a run of
    that name already.
    """
    folder = folder_of(run)
    origin = Run(folder).at(at).committed
    try:
        with pins.pinned(folder.store, [origin.name], "fork"):
            return Run(fork_checkpoint(folder, origin, to or f"{folder.name}-at-{at}"))
    except FileExistsError as error:
        raise ConfigError(f"{error}: choose another name with --to") from error


def refuse_driven(folder: RunFolder) -> None:
    """Raise RunBusyError if a process of this machine drives the run."""
    try:
        holder = lease.holder_of(folder.store.with_retries(SHORT))
    except StorageError:
        # The caller's next request to the storage reports its error.
        return
    if holder is not None and judge(holder) is Life.ALIVE:
        raise RunBusyError(folder.name, str(holder))


def refuse_champion(folder: RunFolder) -> None:
    """Raise ConfigError if a checkpoint of the run is the champion of a registered model."""
    if found := championships(folder.storage, folder.name):
        version = found[0]
        log = ModelLog(folder.storage, version.model).store.url
        raise ConfigError(
            f"run {folder.name!r} has the champion {version.address} ({version.checkpoint}): make "
            f"another version the champion (`evertrain rollback {version.model} --reason WHY`), or "
            f"delete {log}, which forgets the registered model"
        )


def delete_run(run: Run | RunFolder, tracking_uri: str = "") -> None:
    """Delete a run's folder and, with a `tracking_uri`, the run in MLflow.

    MLflow's side is deleted first, so that a failure can be tried again. Raises RunBusyError if a
    process drives the run, ConfigError if the folder is a symbolic link or a checkpoint of it is a
    champion, and StageError if MLflow does not answer or refuses.
    """
    folder = folder_of(run)
    check_no_link(folder)
    refuse_driven(folder)
    refuse_champion(folder)
    # The lease of a driver that died on another machine is taken over after its heartbeat stopped.
    held = lease.acquire(folder.store, folder.name, timing=UPKEEP)
    try:
        with lease.alive(held):
            # It may have become one until the lease was there.
            refuse_champion(folder)
            if tracking_uri:
                delete_tracking(folder.url, tracking_uri)
            abort_uploads(folder)
        RunWriter(folder, held.attempt).delete_run()
    except BaseException:
        # This process lives on, and would be taken for one that drives the run.
        with suppress(StorageError):
            held.release()
        raise


def prune_run(
    run: Run | RunFolder,
    *,
    rules: RetentionRules | None = None,
    dry_run: bool = False,
    ignore_pins_elsewhere: bool = False,
    release_models_in: str = "",
) -> list[Finding]:
    """Delete what no retention rule and no pin keeps; return what was deleted and what stays.

    `rules` are the run's own by default. `dry_run` returns the same and writes nothing.
    `ignore_pins_elsewhere`: processes on other machines that pinned checkpoints are known to have
    ended. `release_models_in` is the address of an MLflow: checkpoints that stay for their model
    there are let go if no registered version points to it, and the models of all that are deleted
    go, too; if MLflow does not answer, TrackingError is raised and nothing is deleted. Raises
    RunBusyError if a process drives the run, and ConfigError if the folder is a symbolic link, or
    if a newer evertrain committed to the run.
    """
    folder = folder_of(run)
    check_no_link(folder)
    ignored = _ignored_pins(folder, elsewhere=ignore_pins_elsewhere, models_in=release_models_in)
    asked = rules or folder.newest_request().config
    champions = partial(championships, folder.storage, folder.name)
    pruning = Pruning(folder, asked, datetime.now(UTC), champions, ignored)
    if dry_run:
        return pruning.survey(lease.newest_attempt(folder.store) + 1)
    held = begin_attempt(folder, timing=UPKEEP)
    with lease.alive_until_released(held):
        found = pruning.carry_out(held.attempt)
    if release_models_in:
        forget_models(folder.url, release_models_in)
    return found


def retention_rules(folder: RunFolder, overrides: Mapping[str, Any]) -> RetentionRules:
    """The run's retention rules, each replaced by the override of its name if that is not None."""
    set_ones = {name: one for name, one in overrides.items() if one is not None}
    return folder.newest_request().config.model_copy(update=set_ones)


def _ignored_pins(folder: RunFolder, *, elsewhere: bool, models_in: str) -> set[str]:
    found = pins.valid_pins(folder.store)
    ignored: list[Callable[[pins.FoundPin], bool]] = []
    if elsewhere:
        ignored.append(lambda pin: pin.is_elsewhere)
    if models_in and any(pin.who == pins.MLFLOW_MODEL for pin in found):
        released = unregistered_checkpoints(folder.url, models_in)
        ignored.append(lambda pin: pin.who == pins.MLFLOW_MODEL and pin.checkpoint in released)
    return {pin.key for pin in found if any(is_ignored(pin) for is_ignored in ignored)}
