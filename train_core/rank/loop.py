"""The training loop: load, while not done, step, validate, save.

It knows torch.distributed and nothing of Ray: the same loop runs in a pool's workers, under
torchrun and alone. Its ranks compute *shards*, all randomness is derived, and whatever one rank
requests (a checkpoint, an end) all ranks do after the same step; so the number of workers and the
moments at which a run was interrupted leave no trace in its numbers. Strategy fsdp
(`rank.distributed.fsdp`) alone rounds differently on other numbers of workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import torch

from train_core.config import TrainConfig
from train_core.errors import words_of
from train_core.policy import metric_names
from train_core.policy.checkpoints.save_schedule import Backpressure, SaveDue
from train_core.policy.samples.steps import MicroBatch
from train_core.policy.stop_reasons import Reached, StopReason, has_reached
from train_core.rank.agreement import AgreedRequests, PendingStep
from train_core.rank.checkpoint.checkpointer import Checkpointer
from train_core.rank.checkpoint.kept import Kept
from train_core.rank.checkpoint.progress import Progress
from train_core.rank.checkpoint.snapshot import check_savable
from train_core.rank.checkpoint.state import TrainingState
from train_core.rank.checkpoint.storing_thread import NoTimeError
from train_core.rank.data.train_loader import TrainLoader
from train_core.rank.distributed.control_message import ControlMessage, RankRequests
from train_core.rank.distributed.fsdp import check_passes
from train_core.rank.distributed.group import (
    Group,
    is_of_another_rank,
    use_deterministic_algorithms,
)
from train_core.rank.distributed.processor import UNKNOWN, continued_on
from train_core.rank.distributed.stop_requests import StopRequests, StopSource
from train_core.rank.distributed.watchdog import Watchdog
from train_core.rank.learner import Learner
from train_core.rank.loaded_workload import LoadedWorkload, first_weights
from train_core.rank.memory import Memory
from train_core.rank.model_checks import refusing_lone_samples, refusing_undetermined
from train_core.rank.passes import backward_passes, weighted_loss
from train_core.rank.step_metrics import TrainRecords
from train_core.rank.validation import validate
from train_core.storage.coordination.stop_request import stop_request
from train_core.storage.records.run_record import NEWEST_STEP_RULES
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter
from train_core.timing import TIMING, Timing
from train_core.workload import Batch

STREAMS = "streams"
"""The part of the state that says where the streams of data are."""
_log = logging.getLogger(__name__)


class _At(Enum):
    """Where a rank is: what its state is worth if the attempt breaks there."""

    BEFORE = "before"
    """It has no state yet."""
    BETWEEN_STEPS = "between steps"
    IN_PASSES = "in passes"
    """The buffers may have changed, and nothing else."""
    CHANGING = "changing"
    """The state is neither the one before the step nor the one after it."""


class Trainer:
    """One rank's part of one attempt at a run.

    `loaded` is what it trains, if not what the run recorded; `stop_source` says whether it shall
    stop, if not the run folder. `memory` has what this process kept of the attempt before, and what
    it keeps of this one. `earlier` waits, on rank 0, for the newest commit of earlier
    attempts; only a trainer with a memory needs it.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: TrainConfig,
        attempt: int,
        group: Group,
        *,
        loaded: LoadedWorkload | None = None,
        stop_source: StopSource | None = None,
        memory: Memory | None = None,
        earlier: Callable[[], Commit | None] = lambda: None,
        taken: Callable[[], int | None] = lambda: None,
        timing: Timing = TIMING,
    ) -> None:
        torch.set_num_threads(config.threads_per_worker)
        record = folder.record() if folder.exists() else None
        step_rules = record.step_rules if record else NEWEST_STEP_RULES
        use_deterministic_algorithms(config, group.device, step_rules)
        self.config = config
        self.group = group
        self.folder = folder
        self.attempt = attempt
        self._is_kept_for_more = memory is not None
        self._is_left = False
        """Whether this rank leaves an attempt that another one's end has broken."""
        self._memory = memory or Memory()
        self._earlier = earlier
        self._taken = taken
        self._shown_step = 0
        """Of the newest validation that is committed, as far as rank 0 knows."""
        self.loaded = loaded or self._memory.load(folder, config)
        self.loaded.check()
        workload, train_set = self.loaded.workload, self.loaded.train_set
        plan = config.step_plan(len(train_set))
        # In epochs beyond those that it began with, the last rate is held.
        epochs_at_first = record.config.epochs if record else config.epochs
        schedule_steps = epochs_at_first * plan.steps_per_epoch
        self.progress = Progress()
        self.learner = Learner(workload, config, group, schedule_steps, step_rules)
        if self.learner.is_sharded:
            check_passes(plan, train_set, group.world_size)
        self.loader = TrainLoader(
            workload, train_set, config, group, has_equal_passes=self.learner.is_sharded
        )
        run_writer = RunWriter(folder, attempt)
        self.records = TrainRecords(run_writer, config, plan, shows_live=group.is_rank0)
        source = stop_source or partial(stop_request, folder.store, attempt)
        self._timing = timing
        poll_s = timing.stopping.poll_s if stop_source is None else timing.stopping.driver_poll_s
        self.stop_requests = StopRequests(source, poll_s, logs=group.is_rank0)
        time_to_save_s = timing.stopping.time_to_save_s(config.grace_s)
        self.watchdog = Watchdog(config.hang_timeout_s)
        self._at = _At.BEFORE
        self._began_at = 0
        """The step that this attempt goes on from."""
        self.state = self._all_state()
        """All that the next step depends on."""
        self.checkpointer = Checkpointer(
            run_writer,
            config,
            group,
            self.state,
            self.learner.model,
            self.records.journal,
            self.watchdog,
            timing.saving,
            is_grace_over=partial(self.stop_requests.is_grace_over, time_to_save_s),
            check_lost=self.stop_requests.check_lost,
        )
        self.agreed = AgreedRequests(group, self.progress, self.records, self.checkpointer)
        num_steps = self.progress.total_steps(config, plan)
        self._checks_lone_samples = plan.has_lone_samples(num_steps)
        self.has_saved = True
        """Whether its last step is committed, as it has ended; else no storage took it in time."""

    @property
    def can_hand_over(self) -> bool:
        """Whether the others lose no step without this rank; may be asked in any thread.

        They have its state after a step of this attempt, and go on from it unless a checkpoint with
        a validation is on its way.
        """
        has_stepped = self._at is not _At.BEFORE and self.progress.step > self._began_at
        is_on_its_way = self.checkpointer.validated is not None and self.checkpointer.is_busy
        return has_stepped and not is_on_its_way

    def run(self) -> Progress:
        """Train to the end, from the newest good checkpoint if there is one.

        A training that is asked to end ends in its grace, saved or not: see `has_saved`.
        """
        try:
            self.stop_requests.start()
            with refusing_undetermined():
                self.restore()
                while not self.progress.stopped_by:
                    if not self.progress.awaits_validation(self.loader.plan):
                        self.step()
                    if self.progress.awaits_validation(self.loader.plan):
                        self.end_epoch()
                    self.stop_if_due()
                    self.save_if_due()
            self.watchdog.rest()
            self.checkpointer.finish(self.progress)
        except NoTimeError:
            # Raised on all ranks together.
            self.has_saved = False
        except Exception as error:
            self._is_left = self._is_kept_for_more and is_of_another_rank(error)
            raise
        finally:
            self.close()
        return self.progress

    def keep(self) -> None:
        """Keep the data, and the state after the last whole step, in this process's memory.

        Called when the attempt broke, for another one. What cannot be kept is loaded again, or left
        to the newest commit.
        """
        self._memory.data = self.loaded.data()
        if self._at is _At.BEFORE:
            # What the attempt before has left was not gone on from yet.
            return
        self._memory.kept = None
        is_whole = self.group.world_size > 1 and self._at is not _At.CHANGING
        if not is_whole or self.learner.is_sharded:
            return
        try:
            self.agreed.settle()
            if self._at is _At.IN_PASSES:
                self.learner.buffers.undo_passes()
            self.progress.elapsed_s = self.records.clock.elapsed_s
            state = self.state.capture(leaving_out={STREAMS})
            if self.loader.streams is not None:
                state[STREAMS] = self.loader.streams.known
            journal, validated = self.records.journal.uncommitted, self.checkpointer.validated
            self._memory.kept = Kept(state, self.loader.known_at, journal, validated)
        except Exception as error:  # noqa: BLE001 (whatever it is: the commit is there)
            _log.info("the state is not kept: %s", words_of(error))

    def close(self) -> None:
        """End all threads and processes."""
        self.watchdog.rest()
        timeout_s, stopping = None, self._timing.stopping
        if not self.has_saved:
            timeout_s = stopping.close_s
        elif self._is_left:
            # The other survivors wait no longer for what this rank still stores.
            timeout_s = stopping.leave_s
        with ExitStack() as last_first:
            last_first.callback(self.loader.close, at_once=self._is_left)
            last_first.callback(self.learner.close)
            last_first.callback(self.records.close, timeout_s)
            last_first.callback(self.stop_requests.close)
            last_first.callback(self.checkpointer.close, timeout_s)

    def restore(self) -> None:
        """Go on from what the ranks have kept, or from the newest good checkpoint."""
        kept = None
        if self._is_kept_for_more:
            # Also where nobody has kept anything: what is read next counts from here on.
            earlier = self.group.call_on_rank0(self._earlier)
            kept = self.checkpointer.restore_kept(self._memory.kept, earlier)
        if not kept:
            self.checkpointer.restore(self.learner.assembly)
        checkpoint = self.checkpointer.newest
        saved_step = -1
        if kept or checkpoint:
            is_saved = checkpoint is not None and checkpoint.step == self.progress.step
            # A validation that was interrupted starts over, and what follows it is saved.
            if is_saved and not self.progress.awaits_validation(self.loader.plan):
                saved_step = self.progress.step
            # The limits may be others than those by which it ended.
            self.stop_if_due()
            if self.group.is_rank0:
                source = "the memory of its workers" if kept else checkpoint and checkpoint.name
                _log.info("resuming after step %d from %s", self.progress.step, source)
                if not kept and (bad := self.folder.quarantined()):
                    self.records.journal.count(metric_names.CHECKPOINT_QUARANTINED, len(bad))
        else:
            self.learner.begin(first_weights(self.folder, self.config))
            # What ranks give each other is plain; it is not there before the first epoch begins.
            check_savable(self.state.capture(leaving_out={STREAMS}))
        was = (checkpoint.manifest.processors or (UNKNOWN,)) if checkpoint else ()
        processors = continued_on(was, self.group, is_strict=self.config.strict)
        self.records.journal.note("processors", processors[-1])
        self.records.start(self.progress)
        self.checkpointer.start(saved_step, processors, is_due=bool(kept) and saved_step < 0)
        if kept or not self.progress.stopped_by:
            known_at = kept.known_at if kept else None
            self.loader.start(self.progress.epoch, self.progress.step, known_at)
        # If another rank has died up to here, it counts for the next attempt, too.
        self._memory.kept = None
        self._began_at = self.progress.step
        self._at = _At.BETWEEN_STEPS
        if kept:
            # The attempt before may have come no further.
            self.save_if_due()

    def step(self) -> None:
        """One optimizer step: every shard's gradients, summed, applied."""
        self.watchdog.move()
        # A GPU computes the passes while the host waits for the last step's loss.
        is_behind = self.group.device.type != "cpu"
        if not is_behind:
            self.agreed.settle()
        self.checkpointer.poll()
        newest = self.checkpointer.newest
        if newest is not None and newest.manifest.validated:
            self._shown_step = newest.step
        progress, learner = self.progress, self.learner
        message = ControlMessage(self.config.shards, self.group)
        self._at = _At.IN_PASSES
        try:
            backward_passes(learner, self.loader, self._forward, message.add_loss)
        except Exception:
            # A loss that is no number is told instead. Several ranks would have to ask each other
            # which checkpoint is good, and the passes of the others may not have failed.
            if self.group.world_size == 1:
                self.agreed.settle()
            raise
        if is_behind:
            self.agreed.settle()
        message.send(self._own_requests())
        weight = learner.exchange()
        self.checkpointer.before_update()
        if not is_behind:
            # So that no rank has a step without its loss, if another one dies.
            message.wait()
        self._at = _At.CHANGING
        learning_rate = learner.learning_rate
        grad_norm = learner.apply_gradients(progress.step)
        num_samples = len(self.loader.plan.step_samples(progress.step_in_epoch))
        progress.count_step(num_samples)
        self.agreed.expect(PendingStep(message, learning_rate, grad_norm, num_samples, weight))
        self.loaded.workload.after_step(learner.model, progress.step)
        self._at = _At.BETWEEN_STEPS

    def end_epoch(self) -> None:
        """Validate, and remember the epoch's metrics; not if a request to stop comes."""
        self.agreed.settle()
        self._wait_for_follower()
        measured = None
        if not self.agreed.current.is_asked_to_stop:
            self.learner.buffers.begin_passes()
            self._at = _At.IN_PASSES
            with self.learner.gathered() as model:
                measured = validate(
                    self.loaded.workload,
                    model,
                    self.loaded.validation_set,
                    self.config,
                    self.group,
                    self.watchdog,
                    self.stop_requests,
                )
        self._at = _At.BETWEEN_STEPS
        if measured is None:
            self.agreed.stop()
            return
        self._at = _At.CHANGING
        progress = self.progress
        metrics = progress.end_epoch() | measured
        progress.metrics |= metrics
        progress.validated_step = progress.step
        progress.judge(self.config)
        self.learner.end_validation(metrics[self.config.monitor])
        self.records.add_validation(progress, metrics)
        if self.group.is_rank0:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            _log.info("epoch %d, step %d: %s", progress.epoch, progress.step, shown)
        if self.loader.streams is not None:
            self.loader.start(progress.epoch, progress.step)
        self._at = _At.BETWEEN_STEPS

    def _wait_for_follower(self) -> None:
        """Wait until who follows the training, if anybody does, has the validation before."""
        if not self.group.is_rank0:
            return
        with self.watchdog.resting():
            while (taken := self._taken()) is not None and taken < self._shown_step:
                self.stop_requests.check_lost()
                if self.stop_requests.is_asked:
                    return
                time.sleep(self._timing.stopping.follower_poll_s)

    def stop_if_due(self) -> None:
        """Note why the training ends after this step, if it does."""
        reason = self.progress.reason_to_stop(
            self.config,
            self.loader.plan,
            is_duration_over=self.agreed.current.is_duration_over,
            is_asked_to_stop=self.agreed.current.is_asked_to_stop,
        )
        self.progress.stopped_by = reason.value if reason else ""

    def save_if_due(self) -> None:
        """Take a checkpoint if one is due after this step, or if it was the last."""
        after = self.progress.after_step(self.loader.plan)
        due = self.checkpointer.due(after, self.agreed.current)
        if due is SaveDue.NO:
            return
        pressure = self.checkpointer.make_room(after, self.agreed.begin_checkpoint())
        # A request that came to any rank while they waited makes this step the last.
        if (
            pressure is Backpressure.WAIT
            and self.agreed.stop_if_any(is_asked=self.stop_requests.is_asked)
            and not self.progress.stopped_by
        ):
            self.stop_if_due()
        if pressure is not Backpressure.SKIP:
            self.progress.elapsed_s = self.records.clock.elapsed_s
            self.checkpointer.save(self.progress, due)

    def _all_state(self) -> TrainingState:
        state, loader = TrainingState(), self.loader
        self.learner.add_to(state)
        if loader.streams is not None:
            state.add(STREAMS, self._capture_streams, loader.streams.restore)
        state.add("progress", self.progress.capture, self.progress.restore)
        return state

    def _capture_streams(self) -> dict[str, Any]:
        return self.loader.capture_streams(self.progress.step)

    def _forward(self, micro: MicroBatch, batch: Batch) -> torch.Tensor:
        """The micro-batch's loss times its share of the step's samples, or what its weight is."""
        checks: AbstractContextManager[None] = nullcontext()
        if self._checks_lone_samples:
            # The first pass shows it.
            model = self.learner.forward_model
            checks = refusing_lone_samples(model, len(micro.positions), self.loader.plan)
            self._checks_lone_samples = False
        with checks:
            return weighted_loss(
                self.loaded.workload, self.learner, self.config, self.group, micro, batch
            )

    def _own_requests(self) -> RankRequests:
        """What this rank requests of all."""
        progress = self.progress
        reached = Reached(progress.step, progress.epoch, self.records.clock.elapsed_s)
        is_duration_over = has_reached(StopReason.MAX_DURATION, reached, self.config)
        return replace(
            self.checkpointer.requests(),
            is_duration_over=self.group.is_rank0 and is_duration_over,
            is_asked_to_stop=self.stop_requests.is_asked,
        )
