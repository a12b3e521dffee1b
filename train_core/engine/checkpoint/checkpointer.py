"""The checkpointer: copies the state, and has it stored and committed in the background.

The loop waits for the copy alone. At most one checkpoint is in flight.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from train_core.config import TrainConfig
from train_core.engine.checkpoint.journal_buffer import JournalBuffer
from train_core.engine.checkpoint.progress import Progress
from train_core.engine.checkpoint.writer import CheckpointWriter, Save, SaveTiming
from train_core.engine.distributed.group import Group
from train_core.errors import EvertrainError, StorageError, UnsavedError
from train_core.policy import metric_names
from train_core.policy.checkpoints.save_state import SaveState, SaveStatus
from train_core.storage.records.journal import Entry, finite
from train_core.storage.records.manifest import CommitFacts
from train_core.storage.run_folder import Commit, RunFolder

_POLL_S = 0.2
_log = logging.getLogger(__name__)


class NoTimeError(EvertrainError):
    """The training has to end before the storage took its checkpoint."""


@dataclass(frozen=True)
class _InFlight:
    """A checkpoint that the background thread stores."""

    future: Future[Commit | None]
    entries: list[Entry]


class Checkpointer:
    """Saves checkpoints of one attempt: this rank's files, and on rank 0 the commit.

    `is_grace_over` says whether the training must end now; then no storage is waited for, and what
    would wait raises NoTimeError.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: TrainConfig,
        attempt: int,
        recorder: JournalBuffer,
        group: Group,
        timing: SaveTiming | None = None,
        is_grace_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.newest: Commit | None = None
        """The newest commit. Known to rank 0, and to all after a resume."""
        self.processors: tuple[str, ...] = ()
        """What the training was computed on until here."""
        self._attempt = attempt
        self._max_unsaved_s = config.max_unsaved_s
        self._recorder = recorder
        self._is_rank0 = group.is_rank0
        self._timing = timing or SaveTiming()
        self._is_grace_over = is_grace_over
        self._writer = CheckpointWriter(folder, config, attempt, group, self._timing)
        self._thread = ThreadPoolExecutor(1, "checkpointer")
        self._status = SaveStatus()
        self._in_flight: _InFlight | None = None
        self._num_saves = 0

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is in flight on this rank."""
        return self._in_flight is not None and not self._in_flight.future.done()

    @property
    def is_retry_due(self) -> bool:
        """Whether the last checkpoint failed and it is time for another one."""
        return self._status.is_retry_due(time.monotonic(), self._timing.retry_s)

    def continue_from(self, checkpoint: Commit) -> None:
        """Go on after this checkpoint, with its journal."""
        self.newest = checkpoint
        self._writer.continue_from(checkpoint)

    def save(
        self,
        state: dict[str, Any],
        frozen: Collection[str],
        parameters: Collection[str],
        progress: Progress,
        *,
        is_scheduled: bool = True,
    ) -> None:
        """Copy the state and start to store it; waits for the checkpoint in flight, if any is.

        `frozen` are the paths of the weights that are not trained, `parameters` those of all of the
        model's. A checkpoint that is not scheduled is kept until the next commit only. Raises as
        `wait`.
        """
        self.wait()
        begin = time.monotonic()
        self._writer.snapshot.take(state, frozen, parameters)
        entries = list(self._recorder.pending)
        facts = CommitFacts(
            attempt=self._attempt,
            step=progress.step,
            epoch=progress.epoch,
            samples_seen=progress.samples_seen,
            metrics=finite(progress.metrics),
            validated=progress.validated_step == progress.step,
            stopped_by=progress.stopped_by,
            in_turn=is_scheduled,
            elapsed_s=progress.elapsed_s,
            processors=self.processors,
        )
        self._num_saves += 1
        save = Save(self._num_saves, facts, entries, self.newest)
        self._status = self._status.began(progress.step, begin)
        self._in_flight = _InFlight(self._thread.submit(self._writer.write, save), entries)
        self._recorder.count(metric_names.CHECKPOINT_BLOCKED_S, time.monotonic() - begin)

    def before_update(self) -> None:
        """Let the update of the weights that comes next wait until they are copied, on a GPU."""
        self._writer.snapshot.copy.before_update()

    def wait_for_in_flight(self) -> None:
        """Wait for the checkpoint in flight, as the next one is due; count it. Raises as `wait`."""
        if self.is_busy:
            begin = time.monotonic()
            self.wait()
            self._recorder.count(metric_names.CHECKPOINT_WAITED, 1)
            self._recorder.count(metric_names.CHECKPOINT_WAITED_S, time.monotonic() - begin)

    def poll(self) -> None:
        """See whether the checkpoint in flight has ended, and warn if it failed.

        Raises EvertrainError if this attempt is fenced, if a weight was not a number, or if
        nothing could be saved for too long.
        """
        if self._in_flight is None:
            return
        if self._in_flight.future.done():
            self.wait()
        else:
            self._give_up_if_too_long("it is still being stored")

    def wait(self) -> None:
        """Wait for the checkpoint in flight.

        One that failed is warned about: its steps are covered by the next one. Raises the error
        if that is of no use, as when a newer attempt has the run, and UnsavedError, on rank 0,
        if checkpoints have failed for longer than `max_unsaved_s`.
        """
        if self._in_flight is None:
            return
        self._wait_in_time(self._in_flight.future)
        ended, self._in_flight = self._in_flight, None
        try:
            self.newest = ended.future.result() or self.newest
        except OSError as error:
            self._recorder.count(metric_names.CHECKPOINT_FAILED, 1)
            _log.warning("a checkpoint was not saved, training goes on: %s", error)
            self._status = self._status.failed(time.monotonic())
            self._give_up_if_too_long(str(error))
            return
        if self._status.failed_at is not None and self._is_rank0:
            _log.warning("checkpoints are saved again, after step %d", self._status.step)
        self._status = self._status.stored()
        self._recorder.forget(ended.entries)

    def resolve(self) -> SaveState:
        """What became of the last checkpoint; for rank 0, when all ranks have waited for theirs.

        SAVED: its commit is there. CLEARED: it failed, and all ranks can save it once more.
        FAILED: the storage is still away. One try takes seconds, so that no rank waits in a
        collective for longer than that. Raises UnsavedError if checkpoints have failed for too
        long.
        """
        if self._status.state is not SaveState.FAILED:
            return self._status.state
        retry_at = time.monotonic() + self._timing.retry_s
        while (left_s := retry_at - time.monotonic()) > 0:
            self._raise_if_grace_is_over()
            time.sleep(min(left_s, _POLL_S))
        try:
            finding = self._thread.submit(self._writer.find_or_clear, self._status.step)
            self._wait_in_time(finding)
            found = finding.result()
        except StorageError as error:
            self._give_up_if_too_long(str(error))
            return SaveState.FAILED
        if found is not None:
            # The answer to its commit was lost.
            self.newest = found
        self._status = self._status.stored() if found is not None else self._status.cleared()
        return self._status.state

    def close(self, timeout_s: float | None = None) -> None:
        """End the thread; a checkpoint that other ranks have not stored yet is given up soon.

        One whose storage hangs is left behind: the process ends without it. `timeout_s` is how long
        one in flight may take, if not as long as after an error.
        """
        self._writer.closing.set()
        if self._in_flight is not None:
            timeout_s = self._timing.close_timeout_s if timeout_s is None else timeout_s
            futures.wait([self._in_flight.future], timeout_s)
        is_left_behind = self.is_busy or self._is_grace_over()
        self._thread.shutdown(wait=not is_left_behind, cancel_futures=True)

    def _wait_in_time(self, future: Future[Any]) -> None:
        """Wait for the end of the thread's work. Raises NoTimeError."""
        while not futures.wait([future], _POLL_S).done:
            self._raise_if_grace_is_over()

    def _raise_if_grace_is_over(self) -> None:
        if self._is_grace_over():
            raise NoTimeError("the storage does not take the checkpoint in time")

    def _give_up_if_too_long(self, cause: str) -> None:
        """Raise UnsavedError, on rank 0, if nothing could be saved for too long."""
        now, status = time.monotonic(), self._status
        if self._is_rank0 and status.is_unsaved_too_long(now, self._max_unsaved_s):
            last_good = str(self.newest.name) if self.newest else None
            raise UnsavedError(now - status.unsaved_since, status.step, last_good, cause)
