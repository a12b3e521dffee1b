"""The folder of another run that a training function begins with: what `init_from` means for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from train_core.errors import CheckpointError, ConfigError, EvertrainError
from train_core.policy.logins import hide_logins
from train_core.storage.addresses import find_checkpoint
from train_core.storage.coordination import pins
from train_core.storage.records.run_record import Origin
from train_core.storage.run_folder import Commit, RunFolder

_log = logging.getLogger("train_core.driver")


def find_reported(what: str, storage: str) -> Origin:
    """What `init_from` means now: a run's best reported folder, or its newest, or the one it names.

    Raises ConfigError if there is none.
    """
    folder, checkpoint = find_checkpoint(what, storage, prefer_best=True)
    if checkpoint.manifest.is_function_end:
        newest = folder.newest_reported()
        if newest is None:
            raise ConfigError(f"init_from {what!r}: run {folder.name!r} has reported no folder")
        checkpoint = newest
    if checkpoint.manifest.reported is None:
        raise ConfigError(
            f"init_from {what!r} is a checkpoint of a workload: a training function begins with a "
            "folder that a training function has reported"
        )
    return Origin(uri=folder.store.uri(checkpoint.key), digest=checkpoint.digest)


def reported_at(origin: Origin) -> tuple[RunFolder, Commit]:
    """The reported folder that run.json names.

    Raises ConfigError if it is gone, and CheckpointError if it is another one.
    """
    folder, checkpoint = find_checkpoint(origin.uri, "")
    if checkpoint.digest != origin.digest:
        raise CheckpointError(
            f"{hide_logins(origin.uri)} is not what the run was begun with, whose digest was "
            f"{origin.digest}: bring it back, or begin a new run"
        )
    return folder, checkpoint


@contextmanager
def pinned_origin(origin: Origin, job: str) -> Iterator[None]:
    """Keep the other run from deleting the folder while the block runs.

    `job`: the Ray job that runs this driver; empty on one machine. Where the other run can be read
    and not written to, the folder is read without a pin.
    """
    with ExitStack() as stack:
        try:
            folder, checkpoint = reported_at(origin)
            pin = pins.pinned(folder.store, [checkpoint.name], "init-from", job=job)
            stack.enter_context(pin)
        except (EvertrainError, FileNotFoundError) as error:
            _log.debug("%s is not pinned: %s", hide_logins(origin.uri), error)
        yield
