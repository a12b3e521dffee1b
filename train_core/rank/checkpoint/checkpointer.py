"""The checkpointer: takes checkpoints by the schedule, the same ones on all ranks.

The loop waits for a copy of the state alone; a thread stores and commits it (`storing_thread.py`).
At most one checkpoint is in flight.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from torch import nn

from train_core.config import TrainConfig
from train_core.errors import StorageError, UnsavedError
from train_core.policy import metric_names
from train_core.policy.checkpoints.save_schedule import (
    AfterStep,
    Backpressure,
    SaveDue,
    SaveRules,
    backpressure,
    is_due_by_clock,
    save_due,
)
from train_core.policy.checkpoints.save_state import SaveState, SaveStatus
from train_core.rank.checkpoint.journal_buffer import JournalBuffer, Uncommitted
from train_core.rank.checkpoint.kept import Kept, Resumed, kept_state
from train_core.rank.checkpoint.progress import Progress
from train_core.rank.checkpoint.reader import Assembly
from train_core.rank.checkpoint.restore import newest_good
from train_core.rank.checkpoint.state import TrainingState, frozen_paths, parameter_paths
from train_core.rank.checkpoint.storing_thread import Save, StoringThread
from train_core.rank.distributed.control_message import RankRequests
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.watchdog import Watchdog
from train_core.storage.records.journal import Entry
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import Commit
from train_core.storage.run_writer import RunWriter
from train_core.timing import TIMING, SaveTiming

_log = logging.getLogger(__name__)


class Checkpointer:
    """The checkpoints of one attempt: this rank's files, and on rank 0 the commits.

    All ranks call `restore`, `due`, `make_room`, `save`, `finish` and `last_good` after the same
    step. What decides among them is what all of them received, so they act alike.

    `state` is all that the next step depends on, with the weights of `model`. `is_grace_over` says
    whether the training must end now; then no storage is waited for, and what would wait raises
    NoTimeError. `check_lost` raises an error if another rank has died, which ends any wait.
    """

    def __init__(
        self,
        run_writer: RunWriter,
        config: TrainConfig,
        group: Group,
        state: TrainingState,
        model: nn.Module,
        journal: JournalBuffer,
        watchdog: Watchdog,
        timing: SaveTiming = TIMING.saving,
        is_grace_over: Callable[[], bool] = lambda: False,
        check_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.newest: Commit | None = None
        """The newest commit. Known to rank 0, and to all after a resume."""
        self.rules: SaveRules = config
        self._run_writer = run_writer
        self._max_unsaved_s = config.max_unsaved_s
        self._group = group
        self._state = state
        self._model = model
        self._journal = journal
        self._watchdog = watchdog
        self._timing = timing
        self._thread = StoringThread(
            run_writer, config, group, self._timing, is_grace_over, check_lost
        )
        self._processors: tuple[str, ...] = ()
        self._status = SaveStatus()
        self._save: Save | None = None
        """The save that was begun last."""
        self._saved_step = -1
        self._is_due = False
        self._saved_at = time.monotonic()

    def restore(self, assembly: Callable[[], Assembly]) -> Commit | None:
        """Restore the newest good checkpoint and go on after it, with its journal.

        None, and the state stays as it is, if nothing was committed. Raises CheckpointError as
        `newest_good` and `TrainingState.restore`.
        """
        found = newest_good(self._run_writer.folder, self._group, assembly)
        if found is None:
            return None
        self.newest, state = found
        self._state.restore(state)
        self._continue_from(self.newest, [])
        return self.newest

    def restore_kept(self, kept: Kept | None, newest: Commit | None) -> Resumed | None:
        """Restore the state of the greatest step that a rank has kept; None if there is none.

        The newest commit is the one that the journal continues; its files are not read.
        """
        found = kept_state(kept, newest.name if newest else None, self._group)
        if found is not None:
            self._state.restore(found.state)
            self._continue_from(newest, found.entries)
        return found

    @property
    def validated(self) -> CheckpointName | None:
        """The checkpoint that was begun last, if it has a validation."""
        if self._save is None or not self._save.facts.validated:
            return None
        return CheckpointName(self._save.facts.step, self._save.facts.attempt)

    def start(self, saved_step: int, processors: tuple[str, ...], *, is_due: bool = False) -> None:
        """Go on from here; the state of `saved_step` needs no checkpoint.

        -1: also a checkpoint of the current step is taken if one is due; with `is_due`, one is
        after the next step in any case. `processors` are those that the training was computed on
        until here, this one included.
        """
        self._processors = processors
        self._is_due = is_due
        self._saved_step = saved_step
        self._saved_at = time.monotonic()

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is in flight on this rank, also one that `close` left behind."""
        return self._thread.is_busy

    def requests(self) -> RankRequests:
        """What this rank requests of all; a checkpoint by the clock is for rank 0 to request."""
        now, is_busy = time.monotonic(), self.is_busy
        since_last_s = now - self._saved_at
        is_due = is_due_by_clock(self.rules, since_last_s=since_last_s, is_busy=is_busy)
        return RankRequests(
            is_due_by_clock=self._group.is_rank0 and is_due,
            is_retry_due=self._is_due or self._status.is_retry_due(now, self._timing.retry_s),
            is_busy=is_busy,
        )

    def poll(self) -> None:
        """See whether the checkpoint in flight has ended, and warn if it failed.

        Raises EvertrainError if this attempt is fenced, if a weight was not a number, or if
        nothing could be saved for too long.
        """
        if self.is_busy:
            self._give_up_if_too_long("it is still being stored")
        else:
            self.wait()

    def due(self, after: AfterStep, agreed: RankRequests) -> SaveDue:
        """Whether a checkpoint is due after this step."""
        return save_due(
            after,
            self.rules,
            saved_step=self._saved_step,
            is_due_by_clock=agreed.is_due_by_clock,
            is_retry_due=agreed.is_retry_due,
        )

    def make_room(self, after: AfterStep, agreed: RankRequests) -> Backpressure:
        """Wait, on WAIT, for the checkpoint in flight on any rank, as the next one is due.

        On SKIP the next one is to be left out. Raises as `wait`, on all ranks.
        """
        pressure = backpressure(after, self.rules, is_busy=agreed.is_busy)
        if pressure is Backpressure.SKIP:
            self._journal.count(metric_names.CHECKPOINT_SKIPPED, 1)
        elif pressure is Backpressure.WAIT:
            # A rank that still stores keeps all waiting, and none of them hangs.
            with self._watchdog.resting():
                self._group.raise_if_any_failed(self._wait_for_room)
        return pressure

    def save(self, progress: Progress, due: SaveDue) -> None:
        """Copy the state and start to store it; waits for the checkpoint in flight, if any is.

        A checkpoint that is not scheduled is kept until the next commit only. Raises as `wait`.
        """
        self._saved_step = progress.step
        self._begin(progress, is_scheduled=due is SaveDue.SCHEDULED)
        self._saved_at = time.monotonic()

    def before_update(self) -> None:
        """Let the update of the weights that comes next wait until they are copied, on a GPU."""
        self._thread.snapshot.copy.before_update()

    def wait(self) -> None:
        """Wait for the checkpoint in flight.

        One that failed is warned about: its steps are covered by the next one. Raises the error
        if that is of no use, as when a newer attempt has the run, and UnsavedError, on rank 0,
        if checkpoints have failed for longer than `max_unsaved_s`. Raises NoTimeError if the grace
        is over before.
        """
        if self._save is None or self._status.state is not SaveState.IN_FLIGHT:
            return
        try:
            self.newest = self._thread.result() or self.newest
        except OSError as error:
            self._journal.count(metric_names.CHECKPOINT_FAILED, 1)
            _log.warning("a checkpoint was not saved, training goes on: %s", error)
            self._status = self._status.failed(time.monotonic())
            self._give_up_if_too_long(str(error))
            return
        if self._status.failed_at is not None and self._group.is_rank0:
            _log.warning("checkpoints are saved again, after step %d", self._status.step)
        self._status = self._status.stored()
        if self._thread.announced is not None:
            self._journal.uncommitted.commit(self._thread.announced)

    def finish(self, progress: Progress) -> None:
        """See the last checkpoint committed; where that fails, all ranks try again together.

        Raises NoTimeError, on all ranks, if the training has to end before that.
        """
        while (state := self._state_of_last()) is not SaveState.SAVED:
            if state is SaveState.CLEARED:
                assert self._save is not None, "one has failed"
                self._begin(progress, is_scheduled=self._save.facts.scheduled)

    def last_good(self) -> str | None:
        """The name of the newest checkpoint, after the one in flight.

        No rank may end before the checkpoint in flight is committed.
        """
        self._watchdog.rest()
        self._group.raise_if_any_failed(self.wait)
        return self._group.broadcast_from_rank0(self._newest_name())

    def close(self, timeout_s: float | None = None) -> None:
        """End the thread, as `StoringThread.close`."""
        self._thread.close(timeout_s)

    def _begin(self, progress: Progress, *, is_scheduled: bool) -> None:
        self._is_due = False
        state = self._state.capture()
        frozen, parameters = frozen_paths(self._model), parameter_paths(self._model)
        self.wait()
        begin = time.monotonic()
        self._thread.snapshot.take(state, frozen, parameters)
        attempt, processors = self._run_writer.attempt, self._processors
        facts = progress.facts(attempt, processors, is_scheduled=is_scheduled)
        number = self._save.number + 1 if self._save else 1
        self._journal.uncommitted.cover(CheckpointName(progress.step, attempt))
        self._save = Save(number, facts, list(self._journal.pending), self.newest)
        self._status = self._status.began(progress.step, begin)
        self._thread.start(self._save)
        self._journal.count(metric_names.CHECKPOINT_BLOCKED_S, time.monotonic() - begin)

    def _continue_from(self, newest: Commit | None, entries: list[Entry]) -> None:
        """Let the journal go on with these entries after the newest commit."""
        self.newest = newest
        self._journal.uncommitted = Uncommitted(newest.name if newest else None, entries)
        if newest is not None:
            self._thread.continue_from(newest)

    def _wait_for_room(self) -> None:
        """Wait for the checkpoint in flight, and count that the next one was held up."""
        if self.is_busy:
            begin = time.monotonic()
            self.wait()
            self._journal.count(metric_names.CHECKPOINT_WAITED, 1)
            self._journal.count(metric_names.CHECKPOINT_WAITED_S, time.monotonic() - begin)

    def _state_of_last(self) -> SaveState:
        # No rank still stores when rank 0 makes room for another try.
        self._group.raise_if_any_failed(self.wait)
        return self._group.call_on_rank0(self._resolve)

    def _resolve(self) -> SaveState:
        """What became of the last checkpoint; for rank 0, when all ranks have waited for theirs.

        SAVED: its commit is there. CLEARED: it failed, and all ranks can save it once more.
        FAILED: the storage is still away. One try takes seconds, so that no rank waits in a
        collective for longer than that. Raises UnsavedError if checkpoints have failed for too
        long, and NoTimeError.
        """
        if self._status.state is not SaveState.FAILED:
            return self._status.state
        try:
            found = self._thread.find_or_clear(self._status.step, self._timing.retry_s)
        except StorageError as error:
            self._give_up_if_too_long(str(error))
            return SaveState.FAILED
        if found is not None:
            # The answer to its commit was lost.
            self.newest = found
        self._status = self._status.stored() if found is not None else self._status.cleared()
        return self._status.state

    def _give_up_if_too_long(self, cause: str) -> None:
        """Raise UnsavedError, on rank 0, if nothing could be saved for too long."""
        now, status = time.monotonic(), self._status
        if self._group.is_rank0 and status.is_unsaved_too_long(now, self._max_unsaved_s):
            waited_s = now - status.unsaved_since
            raise UnsavedError(waited_s, status.step, self._newest_name(), cause)

    def _newest_name(self) -> str | None:
        return str(self.newest.name) if self.newest else None
