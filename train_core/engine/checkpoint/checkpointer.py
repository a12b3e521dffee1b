"""The checkpointer: copies the state, then writes and commits it behind the loop's back.

The loop waits for the copy alone. Every rank's background thread stores its share of the files
and tells rank 0's, which creates the manifest when all are stored: a process that dies before
leaves nothing that counts. One checkpoint is under way at most.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from train_core.config import TrainConfig
from train_core.engine.checkpoint.journal_buffer import JournalBuffer
from train_core.engine.checkpoint.progress import Progress
from train_core.engine.checkpoint.snapshot import Snapshot, SnapshotFile
from train_core.engine.distributed.group import Group
from train_core.engine.distributed.rank_mailbox import RankMailbox
from train_core.errors import (
    CheckpointError,
    EvertrainError,
    NotFiniteError,
    StorageError,
    UnsavedError,
    WorkloadError,
)
from train_core.policy import metric_names
from train_core.storage.cleanup.superseded import delete_superseded
from train_core.storage.objects.digests import digest_of
from train_core.storage.records.journal import Entry, append, finite
from train_core.storage.records.manifest import CheckpointManifest, FileEntry
from train_core.storage.records.names import CHECKPOINTS, CheckpointName
from train_core.storage.records.verified_files import check_size, write_file
from train_core.storage.run_folder import Checkpoint, RunFolder
from train_core.storage.run_writer import RunWriter

COMMIT_TIMEOUT_S = 600.0
"""How long rank 0 waits for the other ranks' files when its own are stored."""
LAST_BREATH_S = 10.0
"""How long a checkpoint that is under way may take when the training ends with an error."""
RETRY_S = 5.0
"""How soon after a checkpoint failed the next one is tried."""
INSIST_S = 600.0
"""How long one with a validation is tried itself: other ranks may wait for it in a collective."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Save:
    """A checkpoint that is under way."""

    future: Future[Checkpoint | None]
    entries: list[Entry]
    step: int
    begun: float


@dataclass(frozen=True)
class _Unsaved:
    """Since when checkpoints fail, all of them, on this rank; and which one did last, and when."""

    since: float
    step: int
    failed_at: float


class Checkpointer:
    """Saves checkpoints of one attempt: this rank's files, and on rank 0 the commit."""

    def __init__(
        self,
        folder: RunFolder,
        config: TrainConfig,
        attempt: int,
        recorder: JournalBuffer,
        group: Group,
    ) -> None:
        self.newest: Checkpoint | None = None
        """The newest commit. Known to rank 0, and to all after a resume."""
        self._folder = folder
        self._writer = RunWriter(folder, attempt)
        self._config = config
        self._attempt = attempt
        self._recorder = recorder
        self._group = group
        self._snapshot = Snapshot(config.shards, group)
        self._posts = RankMailbox(group)
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, "checkpointer")
        self._writing: _Save | None = None
        self._num_saves = 0
        self._unsaved: _Unsaved | None = None
        self._insists_until = 0.0
        self._stored: dict[str, str] = {}
        """Keys of files that are stored already, by digest: those of the last checkpoint."""
        self._given_up: list[CheckpointName] = []
        """Checkpoints that were begun and, as far as was told, not committed."""

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is under way on this rank."""
        return self._writing is not None and not self._writing.future.done()

    @property
    def wants_to_save(self) -> bool:
        """Whether the last checkpoint failed and it is time for another one."""
        unsaved = self._unsaved
        if unsaved is None or self._writing is not None:
            return False
        return time.monotonic() - unsaved.failed_at >= RETRY_S

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """Go on after this checkpoint, with its journal."""
        self.newest = checkpoint
        files = checkpoint.manifest.files
        self._stored = {entry.digest: f"{checkpoint.key}/{entry.name}" for entry in files}

    def save(
        self,
        state: dict[str, Any],
        frozen: Collection[str],
        progress: Progress,
        *,
        in_turn: bool = True,
    ) -> None:
        """Copy the state and start to store it; waits for the checkpoint under way, if any is.

        `frozen` are the paths of the weights that are not trained; one not `in_turn` is kept until
        the next commit only. Raises as `wait`.
        """
        self.wait()
        begin = time.monotonic()
        self._snapshot.take(state, frozen)
        entries = list(self._recorder.pending)
        facts = {
            "step": progress.step,
            "epoch": progress.epoch,
            "samples_seen": progress.samples_seen,
            "metrics": finite(progress.metrics),
            "validated": progress.validated_step == progress.step,
            "stopped_by": progress.stopped_by,
            "in_turn": in_turn,
            "elapsed_s": progress.elapsed_s,
        }
        self._num_saves += 1
        future = self._thread.submit(self._write, self._num_saves, facts, entries)
        self._writing = _Save(future, entries, progress.step, begin)
        self._recorder.rate(metric_names.CHECKPOINT_BLOCKED_S, time.monotonic() - begin)

    def wait_for_in_flight(self) -> None:
        """Wait for the checkpoint under way, as the next one is due; count it. Raises as `wait`."""
        if self.is_busy:
            begin = time.monotonic()
            self.wait()
            self._recorder.rate(metric_names.CHECKPOINT_WAITED, 1)
            self._recorder.rate(metric_names.CHECKPOINT_WAITED_S, time.monotonic() - begin)

    def poll(self) -> None:
        """See whether the checkpoint under way has ended, and warn if it failed.

        Raises EvertrainError if we were fenced, if a weight was not a number, or if nothing could
        be saved for too long.
        """
        if self._writing is None:
            return
        if self._writing.future.done():
            self.wait()
        elif self._group.is_rank0:
            since = self._unsaved.since if self._unsaved else self._writing.begun
            self._give_up_if_too_long(since, self._writing.step, "it is still being stored")

    def wait(self) -> None:
        """Wait for the checkpoint under way.

        One that failed is warned about: its steps are covered by the next one. Raises the error
        if that is of no use, as when a newer attempt has the run, and UnsavedError, on rank 0,
        if checkpoints have failed for longer than `max_unsaved_s`.
        """
        if self._writing is None:
            return
        save, self._writing = self._writing, None
        try:
            self.newest = save.future.result() or self.newest
        except (EvertrainError, OSError) as error:
            if not isinstance(error, OSError):
                raise
            self._recorder.rate(metric_names.CHECKPOINT_FAILED, 1)
            _log.warning("a checkpoint was not saved, training goes on: %s", error)
            since = self._unsaved.since if self._unsaved else save.begun
            self._unsaved = _Unsaved(since, save.step, time.monotonic())
            if self._group.is_rank0:
                self._give_up_if_too_long(since, save.step, str(error))
        else:
            if self._unsaved and self._group.is_rank0:
                _log.warning("checkpoints are saved again, after step %d", save.step)
            self._unsaved = None
            self._recorder.forget(save.entries)

    def outcome(self) -> Literal["saved", "again", "later"]:
        """What became of the last checkpoint; for rank 0, when all ranks have waited for theirs.

        `again`: it failed, and the way is free for all ranks to save once more. `later`: the
        storage is still away. One look takes seconds, so that no rank waits in a collective for
        longer than that may take. Raises UnsavedError if checkpoints have failed for too long.
        """
        unsaved = self._unsaved
        if unsaved is None:
            return "saved"
        time.sleep(RETRY_S)
        last = CheckpointName(unsaved.step, self._attempt)
        try:
            if self._folder.exists_checkpoint(last):
                # The answer to its commit was lost.
                self.newest, self._unsaved = self._folder.checkpoint(last), None
                return "saved"
            # Its files are created anew, and exclusively.
            self._folder.store.delete(f"{CHECKPOINTS}/{last}")
        except StorageError as error:
            self._give_up_if_too_long(unsaved.since, last.step, str(error))
            return "later"
        self._given_up = [name for name in self._given_up if name != last]
        return "again"

    def _give_up_if_too_long(self, since: float, step: int, cause: str) -> None:
        unsaved_s, limit_s = time.monotonic() - since, self._config.max_unsaved_s
        if 0 < limit_s < unsaved_s:
            last_good = str(self.newest.name) if self.newest else None
            raise UnsavedError(unsaved_s, step, last_good, cause)

    def close(self) -> None:
        """End the thread; a checkpoint that other ranks have not stored yet is given up soon.

        One whose storage hangs is left behind: the process ends without it.
        """
        self._closing.set()
        if self._writing is not None:
            futures.wait([self._writing.future], LAST_BREATH_S)
        self._thread.shutdown(wait=not self.is_busy, cancel_futures=True)

    def _write(self, save: int, facts: dict[str, Any], entries: list[Entry]) -> Checkpoint | None:
        """Store this rank's files; rank 0 commits when all ranks have."""
        step = facts["step"]
        name = CheckpointName(step, self._attempt)
        folder = f"{CHECKPOINTS}/{name}"
        # No other one can be chosen as the best in its stead.
        insist_s = min(INSIST_S, self._config.max_unsaved_s or math.inf)
        self._insists_until = time.monotonic() + (insist_s if facts["validated"] else 0)
        if not self._group.is_rank0:
            self._write_share(folder, save, step)
            return None
        try:
            self._delete_given_up()
            files = self._store_files(folder, step)
            files += self._others_files(save, step)
            committed = self._commit(name, files, facts, entries)
        except BaseException:
            self._given_up.append(name)
            raise
        delete_superseded(self._writer, self._config)
        return committed

    def _commit(
        self,
        name: CheckpointName,
        files: list[FileEntry],
        facts: dict[str, Any],
        entries: list[Entry],
    ) -> Checkpoint:
        def commit(is_again: bool) -> Checkpoint:
            if is_again and self._folder.exists_checkpoint(name):
                # The answer was lost.
                return self._folder.checkpoint(name)
            return self._writer.commit(self._manifest(files, facts, entries))

        return self._insist(commit)

    def _insist(self, work: Callable[[bool], _T]) -> _T:
        """What `work` gives; tried again where a storage fails, if the checkpoint is worth it.

        `work` is told whether it is tried again.
        """
        is_again = False
        while True:
            try:
                return work(is_again)
            except StorageError as error:
                if time.monotonic() > self._insists_until or self._closing.is_set():
                    raise
                _log.warning("a checkpoint is not stored yet, training goes on: %s", error)
            is_again = True
            self._closing.wait(RETRY_S)

    def _write_share(self, folder: str, save: int, step: int) -> None:
        """Store this rank's files and tell rank 0."""
        try:
            files = self._store_files(folder, step)
        except NotFiniteError:
            # Rank 0 knows the newest commit, and says so to all.
            self._posts.send(save, {"not_finite": True})
            return
        except BaseException as error:
            self._posts.send(save, {"error": f"{type(error).__name__}: {error}"})
            raise
        stored = [file.model_dump() for file in files]
        self._posts.send(save, {"plan": self._snapshot.plan_digest, "files": stored})

    def _others_files(self, save: int, step: int) -> list[FileEntry]:
        """What the other ranks have stored."""
        files = []
        for post in self._posts.collect(save, timeout_s=COMMIT_TIMEOUT_S, give_up=self._closing):
            if "not_finite" in post:
                raise self._not_finite(step)
            if "error" in post:
                raise StorageError(f"another rank did not store its files: {post['error']}")
            if post["plan"] != self._snapshot.plan_digest:
                raise WorkloadError(
                    "the workers' states differ, and their files would make no checkpoint: what "
                    "`state_dict` gives must have the same names, types and shapes on every worker"
                )
            files += [FileEntry.model_validate(file) for file in post["files"]]
        return files

    def _delete_given_up(self) -> None:
        """Make room: what was not committed may be why the storage is full.

        What a late rank still adds to such a folder is deleted with the attempt's orphans.
        """
        for name in list(self._given_up):
            try:
                if not self._folder.exists_checkpoint(name):
                    self._folder.store.delete(f"{CHECKPOINTS}/{name}")
            except StorageError as error:
                _log.warning("files of a checkpoint that was given up remain: %s", error)
            else:
                self._given_up.remove(name)

    def _check_weights(self, step: int) -> None:
        if self._snapshot.has_nan():
            raise self._not_finite(step)

    def _not_finite(self, step: int) -> NotFiniteError:
        last_good = str(self.newest.name) if self.newest else None
        return NotFiniteError(step, math.nan, last_good, "a weight of the model")

    def _store_files(self, folder: str, step: int) -> list[FileEntry]:
        self._check_weights(step)
        stored = [self._store_file(folder, file) for file in self._snapshot.files]
        self._stored = {entry.digest: f"{folder}/{entry.name}" for entry in stored}
        if self._group.is_rank0:
            for name, data in self._snapshot.small_files().items():
                stored.append(self._store_anew(f"{folder}/{name}", memoryview(data)))
        return stored

    def _store_anew(self, key: str, data: memoryview) -> FileEntry:
        def write(is_again: bool) -> FileEntry:
            if is_again:
                # Files are created exclusively, and there may be a part of it.
                self._folder.store.delete(key)
            return write_file(self._folder.store, key, data)

        return self._insist(write)

    def _store_file(self, folder: str, file: SnapshotFile) -> FileEntry:
        """Store a file; one that has not changed since the last checkpoint is not sent again."""
        store, key = self._folder.store, f"{folder}/{file.planned.name}"
        if file.planned.is_frozen:
            digest = digest_of(file.data)
            entry = FileEntry(name=file.planned.name, size_bytes=len(file.data), digest=digest)
            if digest in self._stored:
                try:
                    check_size(store, self._stored[digest], entry)
                    store.link_or_copy(self._stored[digest], store, key)
                except (StorageError, CheckpointError):
                    # It was deleted with its checkpoint, just now or before, or cut.
                    del self._stored[digest]
                else:
                    return entry
        return self._store_anew(key, file.data)

    def _manifest(
        self, files: list[FileEntry], facts: dict[str, Any], entries: list[Entry]
    ) -> CheckpointManifest:
        """Store the journal's new entries; what the commit will say."""
        journal = self.newest.manifest.journal if self.newest else ()
        return CheckpointManifest(
            created_at=datetime.now(UTC).isoformat(),
            attempt=self._attempt,
            files=tuple(files),
            journal=append(self._folder.store, journal, entries, self._attempt),
            **facts,
        )
