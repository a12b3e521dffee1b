"""Choosing the checkpoint to resume from: the newest that verifies, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from train_core.errors import CheckpointError
from train_core.policy.checkpoints.layout import assign
from train_core.rank.checkpoint.reader import Assembly, read_buffers
from train_core.rank.distributed.group import Group
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import quarantine, quarantine_damaged


def newest_good(
    folder: RunFolder, group: Group, assembly: Callable[[], Assembly]
) -> tuple[Commit, dict[str, Any]] | None:
    """The newest checkpoint whose files verify, and its state; None if none was committed.

    Rank 0 chooses. Each rank reads and verifies some of the files and sends them to the
    others, and every rank puts them together in an `assembly()`. A checkpoint that does not verify
    is quarantined.
    Raises CheckpointError if there are checkpoints and none is good.
    """
    for checkpoint in reversed(group.call_on_rank0(partial(quarantine_damaged, folder))):
        try:
            return checkpoint, _load(folder, checkpoint, group, assembly())
        except CheckpointError as error:
            reason = str(error)
            group.call_on_rank0(partial(quarantine, folder, checkpoint.name, reason))
    group.call_on_rank0(lambda: _refuse_if_none_is_good(folder))
    return None


def _refuse_if_none_is_good(folder: RunFolder) -> None:
    wrong = folder.quarantined()
    if wrong:
        of_each = "; ".join(f"{name}: {reason}" for name, reason in wrong.items())
        raise CheckpointError(
            f"no checkpoint of {folder.url} is good: {of_each}. "
            "Delete the run to start it again from nothing."
        )


def _load(
    folder: RunFolder, checkpoint: Commit, group: Group, assembly: Assembly
) -> dict[str, Any]:
    """The checkpoint's state. Raises CheckpointError, on every rank, for what any of them met."""
    files = checkpoint.manifest.files
    reader = assign([file.size_bytes for file in files], [0] * group.world_size)
    mine = [file for file, rank in zip(files, reader, strict=True) if rank == group.rank]
    buffers = group.raise_if_any_failed(partial(read_buffers, folder.store, checkpoint.key, mine))
    faults: list[CheckpointError] = []
    for file, rank in zip(files, reader, strict=True):
        # One file at a time: of a sharded model, no rank has room for all of them.
        buffer = buffers.pop(file.name, None)
        if buffer is None:
            buffer = torch.empty(file.size_bytes, dtype=torch.uint8)
        group.broadcast_bytes(buffer, source=rank)
        try:
            assembly.add(file.name, buffer)
        except CheckpointError as error:
            faults.append(error)

    def put_together() -> dict[str, Any]:
        if faults:
            raise faults[0]
        return assembly.state()

    return group.raise_if_any_failed(put_together)
