"""The write side of a run folder: what it records and commits goes through here.

Others write their own objects, and no others: `fork` copies a checkpoint into a new run, `cleanup`
deletes, `coordination` has leases, pins, requests to stop and mailboxes
(tests/storage/test_one_writer.py lists all of them).

What an attempt changes is fenced: `RunWriter` has the attempt's number, and checks the lease before
each commit and before it deletes anything that was committed. `ResultWriter` is the part of it that
needs no lease. `create_run` and `quarantine` need none, either: a run is created before anybody
drives it, and a quarantine mark is created once, by the process that met the damage.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from train_core.errors import StorageError
from train_core.results import ModelVersion
from train_core.storage.committed import Scan, scan
from train_core.storage.coordination import deletion_notices, lease
from train_core.storage.coordination.fence_list import read_fence_list, write_fence_list
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.records import journal
from train_core.storage.records.amendments import Amendment, amend
from train_core.storage.records.data_files import FileList, key_of
from train_core.storage.records.documents import with_checksum
from train_core.storage.records.manifest import (
    CheckpointManifest,
    EvaluationManifest,
    FileEntry,
    PredictionsManifest,
)
from train_core.storage.records.names import (
    CHECKPOINTS,
    DECISIONS,
    LIVE_JSON,
    MANIFEST_JSON,
    RAY_SNAPSHOT_JSON,
    RUN_JSON,
    CheckpointName,
    is_of_function,
    manifest_names,
    registered_name,
)
from train_core.storage.records.quarantine import mark_quarantined, remove_mark
from train_core.storage.records.run_record import RunRecord
from train_core.storage.records.verified_files import check_size, write_file
from train_core.storage.run_folder import Commit, RunFolder
from train_core.timing import TIMING, CoordinationTiming

_log = logging.getLogger(__name__)


class ResultWriter:
    """Adds evaluations and predictions to a run, which any process may do.

    A process without the run's lease writes results with this class alone; there may be several
    at once. No attempt fences it, because it can neither replace nor hide anything: a result's
    folder has a name of its own, which ends in random letters where there may be several; its
    manifest is created once and last, and names its checkpoint by digest. The process pins the
    checkpoint first. The pin keeps the checkpoint, and keeps others from deleting the result's
    files before they are committed.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def check_lease(self) -> None:
        """Do nothing: a result needs no lease."""

    def write_result_file(self, key: str, data: bytes) -> FileEntry:
        """Write a file of a result that will be committed; its entry for the manifest."""
        self.folder.store.write(key, data, durable=True)
        return FileEntry.of(key.rpartition("/")[2], data)

    def upload_result_file(self, local: str | Path, key: str) -> None:
        """Copy a local file to the result that it belongs to, which will be committed."""
        self.folder.store.upload(local, key)

    def commit_result(self, key: str, manifest: EvaluationManifest | PredictionsManifest) -> None:
        """Create the manifest of the result in the folder `key`: from here on the result exists.

        Raises FileExistsError if there is another, and FencedError as `check_lease`.
        """
        self.check_lease()
        self.folder.store.create(f"{key}/{manifest_names(key)[0]}", manifest.to_json())


class RunWriter(ResultWriter):
    """Changes a run in the name of one attempt, whose number is the fencing token.

    Every commit, and every deletion of something that was committed, raises FencedError and
    changes nothing if a newer attempt has the run. What is written before a commit counts as
    nothing and lies under names that only this attempt uses, so no check of the lease protects it.
    """

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        super().__init__(folder)
        self.attempt = attempt

    def check_lease(self) -> None:
        """Raise FencedError if a newer attempt has the run."""
        lease.check(self.folder.store, self.attempt)

    def amend(self, amendment: Amendment) -> None:
        """Record what the attempt is to do, unless that is what was recorded last."""
        if amendment != self.folder.newest_request():
            self.check_lease()
            amend(self.folder.store, self.attempt, amendment)

    def store_file(self, key: str, data: memoryview, *, is_again: bool = False) -> FileEntry:
        """Store a file of a checkpoint that will be committed; `is_again` replaces a failed try."""
        if is_again:
            # Files are created exclusively, and there may be a part of it.
            self.folder.store.delete(key)
        return write_file(self.folder.store, key, data)

    def store_copy(self, stored: str, key: str) -> FileEntry:
        """Copy an object of the run folder on the storage's side, and read it once for its digest.

        The copy becomes a file of a checkpoint that will be committed.
        """
        store = self.folder.store
        store.copy(stored, store, key)
        size_bytes = store.size_bytes(key)
        digest = store.digest(key, size_bytes)
        return FileEntry(name=key.rpartition("/")[2], size_bytes=size_bytes, digest=digest)

    def store_again(self, stored: str, key: str, entry: FileEntry) -> None:
        """Give a file that is stored at the key `stored` a second name, or copy it.

        Raises CheckpointError if it is missing, or not of the entry's size.
        """
        check_size(self.folder.store, stored, entry)
        self.folder.store.link_or_copy(stored, self.folder.store, key)

    def append_to_journal(
        self, segments: tuple[FileEntry, ...], entries: Sequence[journal.Entry]
    ) -> tuple[FileEntry, ...]:
        """Store the entries; the segments of the journal with them, for the next commit."""
        return journal.append(self.folder.store, segments, entries, self.attempt)

    def commit(self, manifest: CheckpointManifest) -> Commit:
        """Create a checkpoint's manifest: from here on the checkpoint exists."""
        if manifest.attempt != self.attempt:
            raise ValueError(f"attempt {self.attempt} cannot commit for attempt {manifest.attempt}")
        self.check_lease()
        data = manifest.to_json()
        committed = Commit(manifest, digest_of(data))
        self.folder.store.create(f"{committed.key}/{MANIFEST_JSON}", data)
        return committed

    def note_version(self, version: ModelVersion, number: int) -> None:
        """Note in the run that the event of that number registers a version of it, if it is new.

        0: it was registered before the model had a log.
        """
        self.check_lease()
        key = f"{DECISIONS}/{version.model}/{registered_name(number)}"
        with suppress(FileExistsError):
            self.folder.store.create(key, with_checksum(version))

    def delete_uncommitted(self, name: CheckpointName) -> None:
        """Delete the files of a checkpoint that this attempt began and did not commit."""
        if name.attempt != self.attempt:
            raise ValueError(f"{name} is not a checkpoint of attempt {self.attempt}")
        self.folder.store.delete(f"{CHECKPOINTS}/{name}")

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

    def write_live(self, data: bytes) -> None:
        """Write or replace live.json: a hint, so nothing checks the lease for it.

        A newer one follows soon, so the storage is waited for briefly. Raises StorageError.
        """
        self.folder.store.with_retries(SHORT).write(LIVE_JSON, data)

    def delete_moved(self, key: str) -> None:
        """Delete a folder that a training function wrote here: a checkpoint has its files."""
        if not is_of_function(key):
            raise ValueError(f"{key!r} is no folder of a training function")
        self.check_lease()
        self.folder.store.delete(key)

    def delete_ray_snapshot(self) -> None:
        """Delete the list of checkpoints that `Result.from_path` of Ray Train reads.

        Ray would begin an attempt from it; and fail if one of them was deleted since.
        """
        self.folder.store.delete(RAY_SNAPSHOT_JSON)

    def delete_run(self) -> None:
        """Delete the run with all that is in its folder."""
        self.check_lease()
        # run.json first: without it the run is no more.
        self.folder.store.delete(RUN_JSON)
        self.folder.store.delete("")


def create_run(
    folder: RunFolder,
    record: RunRecord,
    files: FileList | None = None,
    fitted: bytes | None = None,
) -> None:
    """Create the run, with the list of data files and what was fitted, which `record` vouches for.

    Raises FileExistsError if it exists.
    """
    if files is not None and record.files is not None:
        folder.store.write(key_of(record.files), files.to_json(), durable=True)
    if fitted is not None and record.fitted is not None:
        folder.store.write(key_of(record.fitted), fitted, durable=True)
    folder.store.create(RUN_JSON, (record.model_dump_json(indent=1) + "\n").encode())


def begin_attempt(
    folder: RunFolder, *, timing: CoordinationTiming = TIMING.coordination
) -> lease.Lease:
    """Take the lease, quarantine what is damaged, list what earlier attempts committed.

    Raises RunBusyError if another process drives the run.
    """
    held = lease.acquire(folder.store, folder.name, timing=timing)
    try:
        # There may be many manifests to read, from far away.
        with lease.alive(held):
            fence_off_earlier_attempts(folder, held)
    except BaseException:
        with suppress(StorageError):
            held.release()
        raise
    return held


def next_attempt(folder: RunFolder, held: lease.Lease) -> Commit | None:
    """Begin the lease holder's next attempt, as `begin_attempt` does; the newest commit.

    Raises FencedError if somebody else has taken the run.
    """
    held.advance()
    newest = fence_off_earlier_attempts(folder, held)
    held.release_earlier()
    return newest


def fence_off_earlier_attempts(folder: RunFolder, held: lease.Lease) -> Commit | None:
    """List what attempts before the lease holder's have committed: what they do later is ignored.

    Gives the newest of it. Raises as `quarantine_damaged`.
    """
    # A fenced driver may still carry out deletions that it had decided: nobody shall rely on those
    # checkpoints.
    for name in deletion_notices.decided(folder.store):
        with deletion_notices.deleting(folder.store, name, held.attempt, is_decided=True):
            RunWriter(folder, held.attempt).delete_checkpoint(name)
    fence = read_fence_list(folder.store)
    found = scan(folder.store, fence=fence)
    _quarantine_damaged(folder, found)
    counting = [one.name for one in found.good]
    # One whose quarantine is lifted counts again.
    counting += [name for name in (*found.quarantined, *found.damaged) if not fence.excludes(name)]
    earlier = sorted(name for name in counting if name.attempt < held.attempt)
    write_fence_list(folder.store, held.attempt, earlier)
    return found.newest


def quarantine(folder: RunFolder, name: CheckpointName, reason: str) -> None:
    """Mark a checkpoint that failed to verify; it is kept, and used no more."""
    _log.warning("checkpoint %s of run %r is quarantined: %s", name, folder.name, reason)
    mark_quarantined(folder.store, name, reason)


def lift_quarantine(folder: RunFolder, name: CheckpointName) -> None:
    """Delete the mark of a checkpoint that has been verified and is good: it counts again."""
    remove_mark(folder.store, name)


def quarantine_damaged(folder: RunFolder) -> list[Commit]:
    """The good checkpoints, oldest first; those whose manifests cannot be read are marked.

    Raises ConfigError if a newer evertrain committed one.
    """
    found = folder.scan()
    _quarantine_damaged(folder, found)
    return found.good


def _quarantine_damaged(folder: RunFolder, found: Scan) -> None:
    found.refuse_newer()
    for name, reason in found.damaged.items():
        quarantine(folder, name, reason)
