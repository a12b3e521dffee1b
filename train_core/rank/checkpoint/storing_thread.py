"""The checkpointer's background thread: it stores this rank's files and, on rank 0, commits.

Every rank stores its share of the files and sends their sizes and digests to rank 0, which creates
the manifest when all are stored: a process that dies before leaves nothing that counts.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from train_core.config import TrainConfig
from train_core.errors import (
    CheckpointError,
    EvertrainError,
    NotFiniteError,
    StorageError,
    WorkloadError,
)
from train_core.rank.checkpoint.snapshot import Snapshot
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.rank_mailbox import RankMailbox
from train_core.storage.cleanup.retention_after_commit import delete_superseded
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.records.journal import Entry
from train_core.storage.records.manifest import CheckpointManifest, CommitFacts, FileEntry
from train_core.storage.records.names import CHECKPOINTS, CheckpointName
from train_core.storage.run_folder import Commit
from train_core.storage.run_writer import RunWriter
from train_core.timing import SaveTiming

_POLL_S = 0.2
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class NoTimeError(EvertrainError):
    """The training has to end before the storage took its checkpoint."""


@dataclass(frozen=True)
class Save:
    """What is to be committed with the snapshot."""

    number: int
    """All ranks count alike."""
    facts: CommitFacts
    entries: list[Entry]
    """The journal's new entries."""
    previous: Commit | None
    """The newest commit, whose journal is continued."""

    def not_finite(self) -> NotFiniteError:
        """The error for a weight that is not a number."""
        last_good = str(self.previous.name) if self.previous else None
        return NotFiniteError(self.facts.step, math.nan, last_good, "a weight of the model")


class StoringThread:
    """Stores snapshots in the name of one attempt, one after the other.

    The training's own thread calls the public methods; the private ones run in this thread.
    `is_grace_over` says whether the training must end now: then nobody waits for a storage.
    `check_lost` raises an error if the attempt is lost.
    """

    def __init__(
        self,
        run_writer: RunWriter,
        config: TrainConfig,
        group: Group,
        timing: SaveTiming,
        is_grace_over: Callable[[], bool],
        check_lost: Callable[[], None],
    ) -> None:
        self.snapshot = Snapshot(config.shards, group)
        """The copy that is stored; the next one is taken when this thread is idle."""
        self.run_writer = run_writer
        self._config = config
        self._group = group
        self._timing = timing
        self._is_grace_over = is_grace_over
        self._check_lost = check_lost
        self._mailbox = RankMailbox(group)
        self._thread = ThreadPoolExecutor(1, "checkpointer")
        self._storing: Future[Commit | None] | None = None
        """The save that was begun last."""
        self._closing = threading.Event()
        """When set, a save that fails is not tried again."""
        self._is_hurried = False
        """Whether no further file is stored: what is not stored yet will not be committed."""
        self._insists_until = 0.0
        self._stored: dict[str, str] = {}
        """Keys of files that are stored already, by digest: those of the last checkpoint."""
        self.announced: CheckpointName | None = None
        """The newest commit of this attempt that this rank knew as its last save began."""
        self._given_up: list[CheckpointName] = []
        """Checkpoints that were begun and, as far as is known, not committed."""

    @property
    def is_busy(self) -> bool:
        """Whether it stores a snapshot."""
        return self._storing is not None and not self._storing.done()

    def continue_from(self, checkpoint: Commit) -> None:
        """Take the files of this checkpoint for those that are stored already."""
        files = checkpoint.manifest.files
        self._stored = {entry.digest: f"{checkpoint.key}/{entry.name}" for entry in files}

    def start(self, save: Save) -> None:
        """Store the snapshot in the background; `result` tells when it is done."""
        self._storing = self._thread.submit(self._store, save)

    def result(self) -> Commit | None:
        """Wait for the save that was begun last; rank 0 gets its commit.

        Raises what storing it raised, and NoTimeError if the grace is over before.
        """
        assert self._storing is not None, "result() before start()"
        return self._in_time(self._storing)

    def find_or_clear(self, step: int, after_s: float) -> Commit | None:
        """The commit of a save that seemed to fail, if it is there; else delete its files.

        It looks `after_s` from now. Raises StorageError, and NoTimeError as `result`.
        """
        return self._in_time(self._thread.submit(self._find_or_clear, step, after_s))

    def close(self, timeout_s: float | None = None) -> None:
        """End the thread; a save that waits for other ranks is given up soon.

        A thread whose storage hangs is left behind: the process ends without it. `timeout_s` is how
        long a save in flight may take, if its files are stored; by default all of it may take
        `SaveTiming.close_timeout_s`.
        """
        self._is_hurried = timeout_s is not None
        self._closing.set()
        if self._storing is not None:
            timeout_s = self._timing.close_timeout_s if timeout_s is None else timeout_s
            futures.wait([self._storing], timeout_s)
        is_left_behind = self.is_busy or self._is_grace_over()
        self._thread.shutdown(wait=not is_left_behind, cancel_futures=True)

    def _in_time(self, work: Future[_T]) -> _T:
        """The result of this thread's work, for another thread. Raises NoTimeError."""
        while not futures.wait([work], _POLL_S).done:
            self._check_lost()
            if self._is_grace_over():
                raise NoTimeError("the storage does not take the checkpoint in time")
        return work.result()

    def _store(self, save: Save) -> Commit | None:
        """Store this rank's files; rank 0 commits when all ranks have, and returns the commit."""
        name = CheckpointName(save.facts.step, save.facts.attempt)
        folder = f"{CHECKPOINTS}/{name}"
        # A validated checkpoint may be the best, so it is retried for longer.
        insist_s = min(self._timing.insist_s, self._config.max_unsaved_s or math.inf)
        self._insists_until = time.monotonic() + (insist_s if save.facts.validated else 0)
        if not self._group.is_rank0:
            self.announced = CheckpointName.parse(self._mailbox.announced())
            self._store_share(folder, save)
            return None
        try:
            self._delete_given_up()
            files = self._store_files(folder, save)
            files += self._files_of_others(save)
            committed = self._insist(partial(self._commit, name, files, save))
        except BaseException:
            self._given_up.append(name)
            raise
        self.announced = name
        self._mailbox.announce(str(name))
        delete_superseded(self.run_writer, self._config, is_hurried=lambda: self._is_hurried)
        return committed

    def _find_or_clear(self, step: int, after_s: float) -> Commit | None:
        if self._closing.wait(after_s):
            raise StorageError("the training ends before its checkpoint is looked for")
        name, folder = CheckpointName(step, self.run_writer.attempt), self.run_writer.folder
        if folder.exists_checkpoint(name):
            return folder.checkpoint(name)
        # The next try creates its files anew, and exclusively.
        self.run_writer.delete_uncommitted(name)
        self._given_up = [other for other in self._given_up if other != name]
        return None

    def _commit(
        self, name: CheckpointName, files: list[FileEntry], save: Save, is_again: bool
    ) -> Commit:
        """Store the journal's new entries, and commit with them."""
        writer = self.run_writer
        if is_again and writer.folder.exists_checkpoint(name):
            # The answer was lost.
            return writer.folder.checkpoint(name)
        journal = save.previous.manifest.journal if save.previous else ()
        journal = writer.append_to_journal(journal, save.entries)
        manifest = CheckpointManifest.of(save.facts, files=tuple(files), journal=journal)
        return writer.commit(manifest)

    def _insist(self, work: Callable[[bool], _T]) -> _T:
        """The result of `work`, tried again where a storage fails, if the checkpoint is worth it.

        The argument of `work` is whether it is tried again.
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
            self._closing.wait(self._timing.retry_s)

    def _store_share(self, folder: str, save: Save) -> None:
        """Store this rank's files and report to rank 0."""
        try:
            files = self._store_files(folder, save)
        except NotFiniteError:
            # Rank 0 knows the newest commit, and raises the error on all ranks.
            self._mailbox.send(save.number, {"not_finite": True})
            return
        except BaseException as error:
            self._mailbox.send(save.number, {"error": f"{type(error).__name__}: {error}"})
            raise
        stored = [file.model_dump() for file in files]
        report = {"plan": self.snapshot.plan_digest, "files": stored}
        self._mailbox.send(save.number, report)

    def _files_of_others(self, save: Save) -> list[FileEntry]:
        """The files that the other ranks have stored."""
        files = []
        timeout_s = self._timing.commit_timeout_s
        reports = self._mailbox.collect(save.number, timeout_s=timeout_s, give_up=self._closing)
        for report in reports:
            if "not_finite" in report:
                raise save.not_finite()
            if "error" in report:
                raise StorageError(f"another rank did not store its files: {report['error']}")
            if report["plan"] != self.snapshot.plan_digest:
                raise WorkloadError(
                    "the workers' states differ, and their files would make no checkpoint: what "
                    "`state_dict` gives must have the same names, types and shapes on every worker"
                )
            files += [FileEntry.model_validate(file) for file in report["files"]]
        return files

    def _delete_given_up(self) -> None:
        """Make room: what was not committed may be why the storage is full.

        What a late rank still adds to such a folder is deleted with the attempt's orphans.
        """
        for name in list(self._given_up):
            try:
                if not self.run_writer.folder.exists_checkpoint(name):
                    self.run_writer.delete_uncommitted(name)
            except StorageError as error:
                _log.warning("files of a failed checkpoint could not be deleted: %s", error)
            else:
                self._given_up.remove(name)

    def _store_files(self, folder: str, save: Save) -> list[FileEntry]:
        snapshot = self.snapshot
        snapshot.copy.wait()
        if snapshot.has_nan():
            raise save.not_finite()
        stored = [
            self._store_file(
                f"{folder}/{file.planned.name}", file.data, is_frozen=file.planned.is_frozen
            )
            for file in snapshot.files
        ]
        self._stored = {entry.digest: f"{folder}/{entry.name}" for entry in stored}
        if self._group.is_rank0:
            for name, data in snapshot.small_files().items():
                stored.append(self._store_file(f"{folder}/{name}", memoryview(data)))
        return stored

    def _store_file(self, key: str, data: memoryview, *, is_frozen: bool = False) -> FileEntry:
        """Store a file; a frozen one that has not changed since the last is not sent again.

        Raises StorageError as well if the training ends in a hurry.
        """
        if self._is_hurried:
            raise StorageError("the training ends before this checkpoint is stored")
        writer = self.run_writer
        if is_frozen and (stored := self._stored.get(digest := digest_of(data))):
            name = key.rpartition("/")[2]
            entry = FileEntry(name=name, size_bytes=len(data), digest=digest)
            try:
                writer.store_again(stored, key, entry)
            except (StorageError, CheckpointError):
                # It was deleted with its checkpoint, just now or before, or cut.
                del self._stored[digest]
            else:
                return entry
        return self._insist(lambda is_again: writer.store_file(key, data, is_again=is_again))
