"""Saving: all ranks take a checkpoint after the same step, and see the last one committed."""

from __future__ import annotations

import time

from train_core.engine.checkpoint.checkpointer import Checkpointer
from train_core.engine.checkpoint.progress import Progress
from train_core.engine.checkpoint.state import TrainingState
from train_core.engine.distributed.control_message import RankRequests
from train_core.engine.distributed.group import Group
from train_core.engine.distributed.watchdog import Watchdog
from train_core.engine.training.step_metrics import TrainRecords
from train_core.engine.training.train_state import TrainState
from train_core.policy import metric_names
from train_core.policy.checkpoints.save_schedule import (
    AfterStep,
    Backpressure,
    SaveDue,
    SaveRules,
    backpressure,
    is_interval_over,
    save_due,
)
from train_core.policy.checkpoints.save_state import SaveState


class Saver:
    """Takes checkpoints by the schedule. What it is asked after a step is the same on all ranks."""

    def __init__(
        self,
        checkpointer: Checkpointer,
        state: TrainingState,
        train_state: TrainState,
        rules: SaveRules,
        group: Group,
        records: TrainRecords,
        watchdog: Watchdog,
    ) -> None:
        self.checkpointer = checkpointer
        self.state = state
        """All that the next step depends on."""
        self.rules = rules
        self._train_state = train_state
        self._group = group
        self._records = records
        self._watchdog = watchdog
        self._saved_step = -1
        self._saved_at = time.monotonic()
        self._is_scheduled = True

    def start(self, saved_step: int) -> None:
        """Go on from here; the state of `saved_step` needs no checkpoint.

        -1: also a checkpoint of the current step is taken if one is due.
        """
        self._saved_step = saved_step
        self._saved_at = time.monotonic()

    @property
    def is_due_by_clock(self) -> bool:
        """Whether a checkpoint is due by rank 0's clock; for the other ranks it never is."""
        since_last_s = time.monotonic() - self._saved_at
        return self._group.is_rank0 and is_interval_over(
            self.rules, since_last_s=since_last_s, is_busy=self.checkpointer.is_busy
        )

    def due(self, after: AfterStep, requests: RankRequests) -> SaveDue:
        """Whether a checkpoint is due after this step."""
        return save_due(
            after,
            self.rules,
            saved_step=self._saved_step,
            is_due_by_clock=requests.is_due_by_clock,
            is_retry_due=requests.is_retry_due,
        )

    def wait_if_needed(self, after: AfterStep, *, is_busy: bool) -> Backpressure:
        """What the checkpoint in flight means for the one that is due; waits for it on WAIT.

        Raises NoTimeError if the training has to end before that.
        """
        pressure = backpressure(after, self.rules, is_busy=is_busy)
        if pressure is Backpressure.SKIP:
            self._records.journal.count(metric_names.CHECKPOINT_SKIPPED, 1)
        elif pressure is Backpressure.WAIT:
            # A rank that still stores keeps all waiting, and none of them hangs.
            with self._watchdog.resting():
                self._group.raise_if_any_failed(self.checkpointer.wait_for_in_flight)
        return pressure

    def save(self, progress: Progress, due: SaveDue) -> None:
        """Take the checkpoint that is due."""
        progress.elapsed_s = self._records.clock.elapsed_s
        self._saved_step, self._is_scheduled = progress.step, due is SaveDue.SCHEDULED
        self._save(progress)
        self._saved_at = time.monotonic()

    def finish(self, progress: Progress) -> None:
        """See the last checkpoint committed; where that fails, all ranks try again together.

        Raises NoTimeError, on all ranks, if the training has to end before that.
        """
        while (state := self._state_of_last()) is not SaveState.SAVED:
            if state is SaveState.CLEARED:
                self._save(progress)

    def last_good(self) -> str | None:
        """The name of the newest checkpoint, after the one in flight; for all ranks together.

        No rank may end before the checkpoint in flight is committed.
        """
        self._watchdog.rest()
        self._group.raise_if_any_failed(self.checkpointer.wait)
        newest = self.checkpointer.newest
        return self._group.broadcast_from_rank0(str(newest.name) if newest else None)

    def _state_of_last(self) -> SaveState:
        # No rank still stores when rank 0 makes room for another try.
        self._group.raise_if_any_failed(self.checkpointer.wait)
        return self._group.call_on_rank0(self.checkpointer.resolve)

    def _save(self, progress: Progress) -> None:
        weights = self._train_state.frozen(), self._train_state.parameters()
        state, is_scheduled = self.state.capture(), self._is_scheduled
        self.checkpointer.save(state, *weights, progress, is_scheduled=is_scheduled)
