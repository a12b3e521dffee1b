"""A new run that begins with a checkpoint of another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from train_core.errors import CheckpointError
from train_core.storage.coordination import lease
from train_core.storage.records.amendments import amend, newest_amendment
from train_core.storage.records.manifest import committed_bytes
from train_core.storage.records.names import (
    ASKED,
    JOURNAL,
    MANIFEST_JSON,
    LeaseName,
    check_new_run_name,
)
from train_core.storage.records.verified_files import copy_file
from train_core.storage.run_checks import check_leftovers
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter, create_run


def fork_checkpoint(folder: RunFolder, checkpoint: Commit, name: str) -> RunFolder:
    """A new run beside this one that goes on from `checkpoint`, with the journal up to it.

    The new run exists when all of it is copied. Raises FileExistsError if there is one,
    ConfigError if there is a part of one or no run may be called so, RunBusyError if another
    process makes one, and CheckpointError if a file of the checkpoint is not what was committed.
    """
    forked = RunFolder(folder.storage, check_new_run_name(name))
    if forked.exists():
        raise FileExistsError(f"{forked.url} exists")
    check_leftovers(forked)
    with _copied(folder, checkpoint, forked) as writer:
        if amendment := newest_amendment(folder.store):
            amend(forked.store, writer.attempt, amendment)
        record = folder.record()
        changed = {
            "name": name,
            "created_at": datetime.now(UTC).isoformat(),
            "forked_from": folder.store.uri(checkpoint.key),
            "flow_run": "",
            "search": None,
        }
        try:
            documents = folder.files_of(record), folder.fitted_of(record)
            create_run(forked, record.model_copy(update=changed), *documents)
        except FileExistsError:
            # Somebody else has begun it meanwhile, and it has nothing to do with our checkpoint.
            writer.delete_checkpoint(checkpoint.name)
            forked.store.delete(f"{ASKED}/{LeaseName(writer.attempt)}")
            raise
    return forked


@contextmanager
def _copied(folder: RunFolder, checkpoint: Commit, forked: RunFolder) -> Iterator[RunWriter]:
    """Copy the checkpoint, its manifest last, and hold the lease of `forked` for the block.

    Every file is verified while it is copied: raises CheckpointError if one is not what was
    committed.
    """
    manifest, source = checkpoint.manifest, folder.store
    files = {f"{checkpoint.key}/{file.name}": file for file in manifest.files}
    files |= {f"{JOURNAL}/{segment.name}": segment for segment in manifest.journal}
    # Number new attempts above the copied checkpoint's, so that no two commits share a name.
    held = lease.acquire(forked.store, forked.name, above=checkpoint.attempt)
    with lease.alive_until_released(held):
        writer = RunWriter(forked, held.attempt)
        try:
            for key, entry in files.items():
                copy_file(source, key, forked.store, key, entry)
            key = f"{checkpoint.key}/{MANIFEST_JSON}"
            forked.store.create(key, committed_bytes(source, key, checkpoint.digest))
        except CheckpointError:
            # It would be in the way of a fork of another checkpoint.
            writer.delete_checkpoint(checkpoint.name)
            raise
        yield writer
