"""What a training has reported, for who asks while it goes on.

A report counts once it is committed, by the journal: one whose checkpoint retention has deleted is
a report all the same. Of a training function those count, too, that no commit covers yet, as the
driver has them, and commits them if the function's process dies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from train_core.errors import CheckpointError, StorageError
from train_core.policy.metric_names import is_validation
from train_core.results import Reported
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.records.journal import Entry, read_segments
from train_core.storage.records.names import SegmentName
from train_core.storage.run_folder import Commit, RunFolder

_log = logging.getLogger(__name__)


class ReportFeed:
    """Gives the reports of a run in their order. May be asked by any thread.

    `uncovered` gives what was reported after a report, and no commit covers yet. What a training
    function reports is a report, and of a workload's steps each validation.
    """

    def __init__(
        self,
        folder: RunFolder,
        uncovered: Callable[[int], Iterable[Entry]],
        *,
        is_function: bool,
        poll_s: float,
    ) -> None:
        self._folder = folder.with_retries(SHORT)
        self._uncovered = uncovered
        self._is_function = is_function
        self._poll_s = poll_s
        self._is_over = threading.Event()
        self._nothing_new: tuple[set[str], int] = set(), -1
        """The commits that were read last, and the step after which they have no report."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """While the block runs, more reports may come."""
        self._is_over.clear()
        try:
            yield
        finally:
            self._is_over.set()

    def after(self, step: int, wait_s: float) -> list[Reported]:
        """The reports after a step; who has all of them waits for the next, `wait_s` at most.

        Raises StorageError if the storage does not answer, and the training is over; and
        CheckpointError if the journal is damaged.
        """
        deadline = time.monotonic() + wait_s
        fault = ""
        while True:
            # Before it is read: what is committed until the end is found.
            is_last = self._is_over.is_set() or time.monotonic() >= deadline
            try:
                if found := self._found(step):
                    return found
            except (StorageError, CheckpointError) as error:
                # A part of the journal may just have been merged into another one; what is damaged
                # is so the next time, too.
                is_damaged = isinstance(error, CheckpointError) and str(error) == fault
                if self._is_over.is_set() or (is_last and is_damaged):
                    raise
                fault = str(error)
                _log.debug("the reports cannot be read now: %s", error)
            if is_last:
                return []
            self._is_over.wait(self._poll_s)

    def _found(self, step: int) -> list[Reported]:
        known, _ = self._nothing_new
        committed = self._folder.committed_names(known)
        # There may be hundreds: their manifests are not read again at every poll.
        is_read = self._nothing_new == (committed, step)
        commits = [] if is_read else self._folder.scan().good
        newest = next((one for one in reversed(commits) if not one.manifest.reports_again), None)
        entries = list(self._covered(newest, step)) if newest else []
        if not any(self._is_report(one.metrics) for one in entries):
            self._nothing_new = committed, step
        # From there on, as the driver forgets what is covered.
        reached = max([step, *(one.step for one in entries)])
        entries += self._uncovered(reached)
        by_step = {one.step: one for one in commits if not one.manifest.is_function_end}
        return [
            Reported(
                step=number,
                metrics=metrics,
                checkpoint=self._folder.summary(by_step[number]) if number in by_step else None,
            )
            for number, metrics in _by_step(entries).items()
            if self._is_report(metrics)
        ]

    def _is_report(self, metrics: Mapping[str, float | None]) -> bool:
        return self._is_function or is_validation(metrics)

    def _covered(self, commit: Commit, after: int) -> Iterator[Entry]:
        segments = [
            one
            for one in commit.manifest.journal
            if (name := SegmentName.parse(one.name)) is None or name.last_step > after
        ]
        found = read_segments(self._folder.store, segments)
        return (entry for entry in found if entry.step > after)


def _by_step(entries: Iterable[Entry]) -> dict[int, dict[str, float | None]]:
    """What was measured at each step: the training's entry and the validation's are one."""
    found: dict[int, dict[str, float | None]] = {}
    for entry in entries:
        found.setdefault(entry.step, {}).update(entry.metrics)
    return found
