"""Rank 0's side of the reports: the journal, and one checkpoint for each reported folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from train_core.engine.checkpoint.journal_buffer import JournalBuffer
from train_core.engine.ray_train.plain import numbers_and_texts
from train_core.engine.ray_train.task import FunctionTask
from train_core.policy.stop_reasons import StopReason
from train_core.storage.cleanup.superseded import delete_superseded
from train_core.storage.records.journal import finite
from train_core.storage.records.manifest import CheckpointManifest, FileEntry, ReportedFolder
from train_core.storage.run_folder import Checkpoint
from train_core.storage.run_writer import RunWriter

_CLOSE_S = 1.0


class Committer:
    """Commits for one attempt. Used by one thread."""

    def __init__(self, task: FunctionTask) -> None:
        folder = task.folder
        self.writer = RunWriter(folder, task.attempt)
        self._config = task.config
        self._newest = folder.find(task.newest) if task.newest else None
        self._before: Checkpoint | None = None
        """The commit before the newest."""
        self._journal = JournalBuffer(self.writer, is_enabled=True)
        self._journal.start()
        self._metrics: dict[str, float | None] = {}
        """Those of the newest report."""
        self._has_new_commit = False
        self._elapsed_s = self._newest.manifest.elapsed_s if self._newest else 0.0
        self._began_at = time.monotonic()

    def add(self, number: int, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Note the metrics of a report, those of all ranks in their order, for the next commit."""
        numbers, texts = numbers_and_texts(metrics[0])
        self._metrics = finite(numbers)
        others = {
            str(rank): finite(found)
            for rank, of_rank in enumerate(metrics[1:], 1)
            if (found := numbers_and_texts(of_rank)[0])
        }
        self._journal.add(number, numbers, texts=texts, by_rank=others)
        self._journal.show(
            attempt=self.writer.attempt,
            step=number,
            total_steps=0,
            epoch=self._epoch(),
            epochs=0,
            loss=self._metrics.get("loss"),
            metrics=self._metrics,
        )

    def commit(
        self, number: int, reported: ReportedFolder, files: Sequence[FileEntry], *, stops: bool
    ) -> Checkpoint:
        """Commit the files that the ranks have stored; `stops` if the training ends with them.

        Raises FencedError and StorageError.
        """
        reason = StopReason.REQUEST if stops else ""
        return self._commit(number, files, reported, reason, scheduled=True)

    def end(self, number: int) -> Checkpoint:
        """Commit the function's end, with what was reported since the newest commit."""
        return self._commit(number, (), None, StopReason.FUNCTION_END, scheduled=False)

    def delete_superseded(self) -> None:
        """Apply the retention rules, if there is a new commit. Raises FencedError."""
        if self._has_new_commit:
            self._has_new_commit = False
            # A rank that has not read of the newest commit yet may be handed the one before.
            delete_superseded(self.writer, self._config, kept=self._before)

    def _commit(
        self,
        number: int,
        files: Sequence[FileEntry],
        reported: ReportedFolder | None,
        stopped_by: str,
        *,
        scheduled: bool,
    ) -> Checkpoint:
        before = self._newest.manifest if self._newest else None
        entries = list(self._journal.pending)
        manifest = CheckpointManifest(
            created_at=datetime.now(UTC).isoformat(),
            attempt=self.writer.attempt,
            step=number,
            epoch=self._epoch(),
            samples_seen=0,
            metrics=self._metrics,
            validated=True,
            stopped_by=stopped_by,
            in_turn=scheduled,
            elapsed_s=self._elapsed_s + time.monotonic() - self._began_at,
            files=tuple(files),
            journal=self.writer.append_to_journal(before.journal if before else (), entries),
            reported=reported,
        )
        committed = self.writer.commit(manifest)
        self._before, self._newest = self._newest, committed
        self._has_new_commit = True
        self._journal.forget(entries)
        return self._newest

    def close(self) -> None:
        """End the thread that writes live.json."""
        self._journal.close(_CLOSE_S)

    def _epoch(self) -> int:
        """The epoch that the newest report names, if it names a whole one; else the one before."""
        epoch = self._metrics.get("epoch")
        if epoch is None or epoch < 0 or epoch != int(epoch):
            return self._newest.manifest.epoch if self._newest else 0
        return int(epoch)
