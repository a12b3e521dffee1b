"""The write side of a run folder: whatever changes a run goes through here.

Once a run is driven, its changes are fenced: `RunWriter` has the number of an attempt, and each
change looks at the lease first. The functions beside it need no lease. A run is created and forked
before anybody drives it; a result has a folder of its own that nobody else writes to; a quarantine
mark is created once, by the process that met the damage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from train_core.errors import StorageError
from train_core.storage.coordination import lease, pins
from train_core.storage.coordination.fence_list import write_fence_list
from train_core.storage.objects.digests import digest_of
from train_core.storage.records.amendments import Amendment, amend, newest_amendment
from train_core.storage.records.data_files import FileList, key_of
from train_core.storage.records.manifest import CheckpointManifest, Manifest
from train_core.storage.records.names import (
    ASKED,
    CHECKPOINTS,
    JOURNAL,
    MANIFEST_JSON,
    QUARANTINED_JSON,
    RUN_JSON,
    CheckpointName,
    LeaseName,
    check_new_run_name,
)
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import Checkpoint, QuarantineMark, RunFolder

_log = logging.getLogger(__name__)


class RunWriter:
    """What one attempt may change of a run; the attempt's number is its fencing token.

    Every method raises FencedError, and changes nothing, if a newer attempt has the run.
    """

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self.folder = folder
        self.attempt = attempt

    def check_lease(self) -> None:
        """Do nothing but raise FencedError if a newer attempt has the run."""
        lease.check(self.folder.store, self.attempt)

    def amend(self, amendment: Amendment) -> None:
        """Record what the attempt is to do, unless that is what was recorded last."""
        if amendment != self.folder.asked():
            self.check_lease()
            amend(self.folder.store, self.attempt, amendment)

    def commit(self, manifest: CheckpointManifest) -> Checkpoint:
        """Create a checkpoint's manifest: from here on the checkpoint exists."""
        if manifest.attempt != self.attempt:
            raise ValueError(f"attempt {self.attempt} cannot commit for attempt {manifest.attempt}")
        self.check_lease()
        data = manifest.to_json()
        committed = Checkpoint(manifest, digest_of(data))
        self.folder.store.create(f"{committed.key}/{MANIFEST_JSON}", data)
        return committed

    def delete_checkpoint(self, name: CheckpointName) -> None:
        """Delete a checkpoint: its manifest first, so never half."""
        store = self.folder.store
        self.check_lease()
        store.delete(f"{CHECKPOINTS}/{name}/{MANIFEST_JSON}")
        store.delete(f"{CHECKPOINTS}/{name}")

    def write(self, key: str, data: bytes) -> None:
        """Write or replace the report, or the curves."""
        self.check_lease()
        self.folder.store.write(key, data)

    def delete_run(self) -> None:
        """Delete the run with all that is in its folder."""
        self.check_lease()
        # run.json first: without it the run is no more.
        self.folder.store.delete(RUN_JSON)
        self.folder.store.delete("")


def create_run(folder: RunFolder, record: RunRecord, files: FileList | None = None) -> None:
    """Create the run, with the list of data files that `record.files` vouches for.

    Raises FileExistsError if it exists.
    """
    if files is not None and record.files is not None:
        folder.store.write(key_of(record.files), files.to_json(), durable=True)
    folder.store.create(RUN_JSON, (record.model_dump_json(indent=1) + "\n").encode())


def begin_attempt(folder: RunFolder) -> lease.Lease:
    """Take the lease, quarantine what is damaged, list what earlier attempts committed.

    Raises RunBusyError if another process drives the run.
    """
    held = lease.acquire(folder.store, folder.name)
    try:
        held.send_heartbeat()
        # There may be many manifests to read, from far away.
        with lease.alive(held):
            _fence_off_earlier_attempts(folder, held)
    except BaseException:
        with suppress(StorageError):
            held.release()
        raise
    return held


def next_attempt(folder: RunFolder, held: lease.Lease) -> None:
    """Begin the lease holder's next attempt, as `begin_attempt` does.

    Raises FencedError if somebody else has taken the run.
    """
    held.advance()
    _fence_off_earlier_attempts(folder, held)


def _fence_off_earlier_attempts(folder: RunFolder, held: lease.Lease) -> None:
    # A fenced driver may still carry out deletions that it had decided: nobody shall rely on those
    # checkpoints.
    for name in pins.decided(folder.store):
        with pins.deleting(folder.store, name, held.attempt, is_decided=True):
            RunWriter(folder, held.attempt).delete_checkpoint(name)
    good = quarantine_damaged(folder)
    earlier = [one.name for one in good if one.attempt < held.attempt]
    write_fence_list(folder.store, held.attempt, earlier)


def quarantine(folder: RunFolder, name: CheckpointName, reason: str) -> None:
    """Mark a checkpoint that failed to verify; it is kept, and used no more."""
    _log.warning("checkpoint %s of run %r is quarantined: %s", name, folder.name, reason)
    mark = QuarantineMark(reason=reason).model_dump_json().encode()
    with suppress(FileExistsError):
        folder.store.create(f"{CHECKPOINTS}/{name}/{QUARANTINED_JSON}", mark)


def quarantine_damaged(folder: RunFolder) -> list[Checkpoint]:
    """The good checkpoints, oldest first; those whose manifests cannot be read are marked."""
    good, damaged = folder.scan()
    for name, reason in damaged.items():
        quarantine(folder, name, reason)
    return good


def commit_result(folder: RunFolder, key: str, manifest: Manifest) -> None:
    """Create the manifest of an evaluation or a batch inference in its folder: now it exists.

    Raises FileExistsError if there is another.
    """
    folder.store.create(f"{key}/{MANIFEST_JSON}", manifest.to_json())


def fork_checkpoint(folder: RunFolder, checkpoint: Checkpoint, name: str) -> RunFolder:
    """A new run beside this one that goes on from `checkpoint`, with the journal up to it.

    The new run exists when all of it is copied. Raises FileExistsError if there is one,
    ConfigError if there is a part of one or no run may be called so, and RunBusyError if
    another process makes one.
    """
    forked = RunFolder(folder.storage, check_new_run_name(name))
    if forked.exists():
        raise FileExistsError(f"{forked.url} exists")
    forked.refuse_leftovers()
    with _copied(folder, checkpoint, forked) as writer:
        if amendment := newest_amendment(folder.store):
            amend(forked.store, writer.attempt, amendment)
        record = folder.record()
        changed = {
            "name": name,
            "created_at": datetime.now(UTC).isoformat(),
            "forked_from": folder.store.uri(checkpoint.key),
            "flow_run": "",
        }
        try:
            create_run(forked, record.model_copy(update=changed), folder.files_of(record))
        except FileExistsError:
            # Somebody else has begun it meanwhile, and it has nothing to do with our checkpoint.
            writer.delete_checkpoint(checkpoint.name)
            forked.store.delete(f"{ASKED}/{LeaseName(writer.attempt)}")
            raise
    return forked


@contextmanager
def _copied(folder: RunFolder, checkpoint: Checkpoint, forked: RunFolder) -> Iterator[RunWriter]:
    """Copy the checkpoint, its manifest last, and hold the lease of `forked` for the block."""
    keys = [f"{checkpoint.key}/{file.name}" for file in checkpoint.manifest.files]
    keys += [f"{JOURNAL}/{segment.name}" for segment in checkpoint.manifest.journal]
    # Its attempts follow those whose names it has: two commits must not meet under one.
    held = lease.acquire(forked.store, forked.name, above=checkpoint.attempt)
    with lease.alive_until_released(held):
        for key in [*keys, f"{checkpoint.key}/{MANIFEST_JSON}"]:
            folder.store.copy(key, forked.store, key)
        yield RunWriter(forked, held.attempt)
