"""Rank 0's side of the reports: the journal, and one checkpoint for each reported folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from train_core.errors import WorkloadError
from train_core.functions.reports.channel import ReportChannel
from train_core.functions.reports.plain_metrics import numbers_and_texts
from train_core.functions.task import FunctionTask
from train_core.policy.stop_reasons import StopReason
from train_core.rank.checkpoint.journal_buffer import JournalBuffer
from train_core.storage.cleanup.retention_after_commit import delete_superseded
from train_core.storage.records.documents import LARGEST_NUMBER, MAX_ENTRIES, MAX_TEXT
from train_core.storage.records.journal import Entry, finite
from train_core.storage.records.manifest import (
    CheckpointManifest,
    CommitFacts,
    FileEntry,
    ReportedFolder,
)
from train_core.storage.run_folder import Commit
from train_core.storage.run_writer import RunWriter


class Committer:
    """Commits for one attempt. Used by one thread."""

    def __init__(self, task: FunctionTask, channel: ReportChannel) -> None:
        folder = task.folder
        self.writer = RunWriter(folder, task.attempt)
        self._task, self._channel = task, channel
        self._newest = folder.find(task.start) if task.start else None
        self._before: Commit | None = None
        """The commit before the newest."""
        self._held: set[str] = set()
        """Checkpoints that ranks have been handed."""
        self._journal = JournalBuffer(self.writer, shows_live=True)
        self._journal.start()
        self._covered: list[Entry] = []
        """The entries of the newest commit, which the driver has not forgotten yet."""
        self._has_new_commit = False
        self._elapsed_s = self._newest.manifest.elapsed_s if self._newest else 0.0
        self._began_at = time.monotonic()

    def add(
        self,
        number: int,
        metrics: Sequence[Mapping[str, Any]],
        held: Collection[str] = (),
        *,
        has_folder: bool = False,
    ) -> None:
        """Note the metrics of a report, those of all ranks in their order, for the next commit.

        `held` are the checkpoints that a rank has, and that stay for the time being. With a folder,
        it is the next commit.
        """
        self._held = set(held)
        numbers, texts = numbers_and_texts(metrics[0])
        others = {
            str(rank): finite(found)
            for rank, of_rank in enumerate(metrics[1:], 1)
            if (found := numbers_and_texts(of_rank)[0])
        }
        self._journal.add(number, numbers, texts=texts, by_rank=others)
        entry = self._journal.pending[-1]
        # If this process dies, and nobody repeats the report, the driver commits it.
        message = {"entry": entry.model_dump(mode="json"), "has_folder": has_folder}
        self._channel.announce(uncovered_topic(number), message)
        self._journal.show(
            attempt=self.writer.attempt,
            step=number,
            total_steps=0,
            epoch=_epoch_after(self._newest, entry.metrics),
            epochs=0,
            loss=entry.metrics.get("loss"),
            metrics=entry.metrics,
        )

    def commit(
        self, number: int, reported: ReportedFolder, files: Sequence[FileEntry], *, stops: bool
    ) -> Commit:
        """Commit the files that the ranks have stored; `stops` if the training ends with them.

        Raises FencedError and StorageError.
        """
        reason = StopReason.REQUEST if stops else ""
        return self._commit(number, reason, files=tuple(files), reported=reported)

    def end(self, number: int, returned: Any = None) -> Commit:
        """Commit the function's end: what was reported since the newest commit, and returned."""
        return self._commit(number, StopReason.FUNCTION_END, returned=returned)

    def clean_up(self) -> None:
        """Delete what the newest commit has made superfluous. Raises FencedError."""
        if not self._has_new_commit:
            return
        self._has_new_commit = False
        for entry in self._covered:
            self._channel.forget(uncovered_topic(entry.step))
        # A rank that has not read of the newest commit yet may be handed the one before.
        before = {str(self._before.name)} if self._before else set()
        delete_superseded(self.writer, self._task.config, kept=before | self._held)

    def _commit(self, number: int, stopped_by: str, **more: Any) -> Commit:
        entries = list(self._journal.pending)
        elapsed_s = self._elapsed_s + time.monotonic() - self._began_at
        committed = commit_reports(
            self.writer, self._newest, number, entries, stopped_by, elapsed_s, **more
        )
        self._before, self._newest = self._newest, committed
        self._has_new_commit, self._covered = True, entries
        self._journal.forget(entries)
        return committed

    def close(self) -> None:
        """End the thread that writes live.json."""
        self._journal.close(self._task.timing.last_live_s)


def commit_reports(
    writer: RunWriter,
    before: Commit | None,
    step: int,
    entries: Sequence[Entry],
    stopped_by: str,
    elapsed_s: float,
    *,
    files: tuple[FileEntry, ...] = (),
    reported: ReportedFolder | None = None,
    returned: Any = None,
) -> Commit:
    """Commit the entries of reports after the commit `before`, with a folder or without one.

    One without a folder is not scheduled; the function's end has what it `returned`. `elapsed_s`
    are the seconds of training until here.

    Raises FencedError, StorageError, FileExistsError if there is such a commit, and WorkloadError
    if there are more files or metrics, or longer names of metrics, than a manifest may have.
    """
    known = before.manifest if before else None
    metrics = entries[-1].metrics if entries else known.metrics if known else {}
    _check_sizes(metrics, files)
    facts = CommitFacts(
        attempt=writer.attempt,
        step=step,
        epoch=_epoch_after(before, metrics),
        samples_seen=0,
        metrics=metrics,
        validated=True,
        stopped_by=stopped_by,
        in_turn=reported is not None,
        elapsed_s=elapsed_s,
    )
    journal = writer.append_to_journal(known.journal if known else (), entries)
    return writer.commit(
        CheckpointManifest.of(
            facts, files=files, journal=journal, reported=reported, returned=returned
        )
    )


def uncovered_topic(number: int) -> str:
    """Where the driver's store has a report that no commit covers yet."""
    return f"uncovered-{number}"


def uncovered_entries(
    read: Callable[[str], str | None], after: int, *, without_folder: bool = False
) -> Iterator[Entry]:
    """The reports after the number `after`, from the driver's store, which outlives rank 0.

    With `without_folder`, those before the first one that has a folder.
    """
    for number in count(after + 1):
        found = read(uncovered_topic(number))
        if found is None:
            return
        message = json.loads(found)
        if without_folder and message["has_folder"]:
            return
        yield Entry.model_validate(message["entry"])


def _epoch_after(before: Commit | None, metrics: Mapping[str, float | None]) -> int:
    """The epoch that the newest report names, if it names a whole one; else the one before."""
    epoch = metrics.get("epoch")
    if epoch is None or not 0 <= epoch < LARGEST_NUMBER or epoch != int(epoch):
        return before.manifest.epoch if before else 0
    return int(epoch)


def _check_sizes(metrics: Mapping[str, float | None], files: Sequence[FileEntry]) -> None:
    """Raise WorkloadError if there are too many for a manifest, or a metric's name is too long."""
    for number, what in ((len(metrics), "metrics"), (len(files), "files")):
        if number > MAX_ENTRIES:
            raise WorkloadError(
                f"a training function reported {number} {what}: a checkpoint has at most "
                f"{MAX_ENTRIES} of them"
            )
    for name in metrics:
        if len(name) > MAX_TEXT:
            raise WorkloadError(
                f"a training function reported a metric whose name, {name[:40]}…, has "
                f"{len(name)} characters: report names of at most {MAX_TEXT}"
            )
