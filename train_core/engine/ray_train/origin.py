"""The folder of another run that a training function begins with: what `init_from` means for it."""

from __future__ import annotations

from train_core.errors import CheckpointError, ConfigError
from train_core.policy.logins import hide_logins
from train_core.storage.addresses import find_checkpoint
from train_core.storage.records.run_record import Origin
from train_core.storage.run_folder import Checkpoint, RunFolder


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


def reported_at(origin: Origin) -> tuple[RunFolder, Checkpoint]:
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
