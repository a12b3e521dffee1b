"""The deletion of one checkpoint: announced, then the manifest, then the files, then its pins.

1. `deletion_notices.deleting` announces it, and looks for pins: one that is there stops it.
2. `RunWriter.delete_checkpoint` deletes the manifest first, so that a crash never leaves a
   checkpoint that looks whole, and then the files.
3. The checkpoint's folder of pins is deleted, the announcement with it.

Two others delete checkpoints, with step 2 only: a fork whose copy failed, and an attempt that takes
over a run, which carries out the deletions that the earlier driver had announced.

docs/design/deletion-and-pins.md says what is left after a crash at each step.
"""

from __future__ import annotations

from collections.abc import Collection

from train_core.storage.coordination import deletion_notices
from train_core.storage.records.names import PINS, CheckpointName
from train_core.storage.run_writer import RunWriter


def delete_unless_pinned(
    writer: RunWriter, name: str, *, ignored_pins: Collection[str] = ()
) -> bool:
    """Delete a checkpoint, its manifest first; whether nobody pinned it.

    Raises FencedError if a newer attempt has the run.
    """
    parsed = CheckpointName.parse(name)
    if parsed is None:
        raise ValueError(f"{name!r} is not the name of a checkpoint")
    store = writer.folder.store
    with deletion_notices.deleting(store, parsed, writer.attempt, ignored=ignored_pins) as others:
        if others:
            return False
        writer.delete_checkpoint(parsed)
        store.delete(f"{PINS}/{name}")
    return True
