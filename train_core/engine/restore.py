"""Choosing the checkpoint to resume from: the newest that verifies, the same on every rank."""

from __future__ import annotations

from typing import Any

from train_core.engine.checkpoint_files import parse, read_verified
from train_core.engine.group import Group
from train_core.errors import CheckpointError, EvertrainError
from train_core.storage.run_folder import Checkpoint, RunFolder


def newest_good(folder: RunFolder, group: Group) -> tuple[Checkpoint, dict[str, Any]] | None:
    """The newest checkpoint whose files verify, and its state; None if none was committed.

    Rank 0 chooses and tells the others, who load the very same one. A checkpoint that does not
    verify is quarantined. Raises CheckpointError if there are checkpoints and none is good.
    """
    chosen, error = None, None
    if group.is_first:
        try:
            chosen = _choose(folder)
        except EvertrainError as raised:
            error = raised
    told = group.from_first((chosen[0] if chosen else None, error))
    if told[1] is not None:
        raise told[1]
    if told[0] is None:
        return None
    if chosen is None:
        chosen = told[0], parse(read_verified(folder.store, told[0].key, told[0].manifest.files))
    return chosen


def _choose(folder: RunFolder) -> tuple[Checkpoint, dict[str, Any]] | None:
    for checkpoint in reversed(folder.quarantine_damaged()):
        try:
            files = read_verified(folder.store, checkpoint.key, checkpoint.manifest.files)
            return checkpoint, parse(files)
        except CheckpointError as error:
            folder.quarantine(checkpoint.name, str(error))
    wrong = folder.quarantined()
    if wrong:
        raise CheckpointError(
            f"no checkpoint of {folder.url} is good: {'; '.join(wrong.values())}. "
            "Delete the run to start it again from nothing."
        )
    return None
