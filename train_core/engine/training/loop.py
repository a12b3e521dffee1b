"""The training loop: load, while not done, step, validate, save.

It knows torch.distributed and nothing of Ray: the same loop runs in a pool's workers, under
torchrun and alone. Its ranks compute *shards*, all randomness is derived, and whatever one rank
wants (a checkpoint, an end) all ranks do at the same step; so the number of workers and the
moments at which a run was interrupted leave no trace in its numbers. Strategy fsdp
(`engine.fsdp`) alone rounds differently on other numbers of workers.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from train_core.config import TrainConfig
from train_core.engine.checkpoint.checkpointer import Checkpointer
from train_core.engine.checkpoint.journal_buffer import JournalBuffer
from train_core.engine.checkpoint.progress import Progress
from train_core.engine.checkpoint.restore import newest_good
from train_core.engine.checkpoint.state import TrainingState
from train_core.engine.checkpoint.writer import SaveTiming
from train_core.engine.data.batches import (
    StreamBatches,
    TrainBatches,
    load_ahead,
    seed_generators,
    to_device,
)
from train_core.engine.data.recorded import load_recorded, with_login
from train_core.engine.distributed.control_message import ControlMessage
from train_core.engine.distributed.fsdp import check_passes
from train_core.engine.distributed.group import Group, use_deterministic_algorithms
from train_core.engine.distributed.watchdog import Watchdog
from train_core.engine.metrics.measure import check_split, forward
from train_core.engine.training.stop_listener import StopListener
from train_core.engine.training.train_state import TrainState
from train_core.engine.training.validation import validate
from train_core.errors import NotFiniteError
from train_core.policy.randomness import FORWARD, derive_seed
from train_core.policy.save_schedule import (
    AfterStep,
    Backpressure,
    SaveDue,
    backpressure,
    is_due_by_time,
    save_due,
)
from train_core.policy.save_state import SaveState
from train_core.policy.sharding import shards_of_rank
from train_core.policy.steps import MicroBatch
from train_core.policy.stop_reasons import Reached, StopReason, has_reached
from train_core.storage.run_folder import Origin, RunFolder
from train_core.workload import Batch, Workload, indexed, is_stream, load_split

_log = logging.getLogger(__name__)


class Trainer:
    """One rank's part of one attempt at a run."""

    def __init__(
        self,
        folder: RunFolder,
        config: TrainConfig,
        attempt: int,
        group: Group,
        *,
        timing: SaveTiming | None = None,
    ) -> None:
        torch.set_num_threads(config.threads_per_worker)
        if group.device.type == "cuda":
            use_deterministic_algorithms(wanted=config.deterministic)
        self.config = config
        self.group = group
        self.folder = folder
        self.attempt = attempt
        self.workload: Workload[Any] = self._load_workload()
        self.train_set = load_split(self.workload, "train")
        self.validation_set = indexed(self.workload, "validation")
        check_split(self.validation_set, "validation")
        self.plan = config.step_plan(check_split(self.train_set, "train"))
        self.progress = Progress()
        self.shards = shards_of_rank(config.shards, group.world_size, group.rank)
        self.streams = (
            StreamBatches(self.workload, self.train_set, config)
            if is_stream(self.train_set)
            else None
        )
        self.trained = TrainState(self.workload, config, group, self._schedule_steps())
        if self.trained.is_sharded:
            check_passes(self.plan, self.train_set, group.world_size)
        self.state = self._all_state()
        self.recorder = JournalBuffer(folder.store, is_enabled=group.is_rank0)
        self.checkpointer = Checkpointer(folder, config, attempt, self.recorder, group, timing)
        self.listener = StopListener(folder.store, attempt, is_enabled=group.is_rank0)
        self.watchdog = Watchdog(config.hang_timeout_s)
        self.batches: Iterator[Batch] = iter(())
        self._unsettled: tuple[ControlMessage, dict[str, float], int] | None = None
        self._grad_norm: torch.Tensor | None = None
        self._wants_checkpoint = self._wants_retry = False
        self._is_time_up = self._is_asked_to_stop = False
        self._is_busy = False
        self._saved_step = -1
        self._is_scheduled = True

    def run(self) -> Progress:
        """Train to the end, from the newest good checkpoint if there is one."""
        try:
            self.restore()
            while not self.progress.stopped_by:
                if not self.progress.awaits_validation(self.plan):
                    self.step()
                if self.progress.awaits_validation(self.plan):
                    self.end_epoch()
                self.stop_if_due()
                self.save_if_due()
            self.watchdog.rest()
            self.finish()
        finally:
            self.watchdog.rest()
            self.checkpointer.close()
            self.listener.close()
            self.recorder.close()
            self.trained.reducer.close()
        return self.progress

    def restore(self) -> None:
        """Go on from the newest good checkpoint, if there is one."""
        found = newest_good(self.folder, self.group, self.trained.assembly)
        if found:
            checkpoint, state = found
            self.state.restore(state)
            self.checkpointer.continue_from(checkpoint)
            # A validation that was interrupted starts over, and what follows it is saved.
            if not self.progress.awaits_validation(self.plan):
                self._saved_step = self.progress.step
            # The limits may be others than those by which it ended.
            self.progress.stopped_by = ""
            self.stop_if_due()
            if self.group.is_rank0:
                _log.info("resuming after step %d from %s", self.progress.step, checkpoint.name)
                if quarantined := self.folder.quarantined():
                    self.recorder.rate("checkpoint/quarantined", len(quarantined))
        else:
            self.trained.begin(self._origin())
        self._first_step = self.progress.step
        self._elapsed_before = self.progress.elapsed_s
        self._saved_at = self._began_at = self._settled_at = time.monotonic()
        self._fetch_from_here()

    def step(self) -> None:
        """One optimizer step: every shard's gradients, summed, applied."""
        self.watchdog.move()
        self._settle()
        self.checkpointer.poll()
        progress, trained = self.progress, self.trained
        word = ControlMessage(self.config.shards, self.group)
        work = self._micro_batches(progress.epoch, progress.step_in_epoch)
        for shard, micro_batches in zip(self.shards, work, strict=True):
            trained.reducer.begin_shard(shard)
            trained.buffers.begin_shard(shard, is_first_here=shard == self.shards.start)
            for micro in micro_batches:
                loss = self._forward(micro)
                word.add_loss(shard, loss)
                if micro is micro_batches[-1]:
                    trained.reducer.expect_last_backward()
                loss.backward()
            trained.reducer.end_shard()
            trained.buffers.end_shard(shard)
        word.send(
            wants_checkpoint=self._checkpoint_is_due(),
            wants_retry=self.checkpointer.wants_to_save,
            is_time_up=self._time_is_up(),
            is_asked_to_stop=self.listener.is_asked,
            is_busy=self.checkpointer.is_busy,
        )
        trained.buffers.send()
        trained.reducer.finish()
        trained.buffers.finish()
        learning_rate = trained.learning_rate
        self._grad_norm = trained.apply_gradients(progress.step)
        num_samples = len(self.plan.step_samples(progress.step_in_epoch))
        progress.count_step(num_samples)
        self._unsettled = word, {"train/learning_rate": learning_rate}, num_samples
        self.workload.after_step(trained.model, progress.step)

    def end_epoch(self) -> None:
        """Validate, and remember the epoch's metrics; not if a request to stop comes."""
        self._settle()
        measured = None
        if not self._is_asked_to_stop:
            with self.trained.gathered() as model:
                what = (self.workload, model, self.validation_set, self.config, self.group)
                measured = validate(*what, self.watchdog, self.listener)
        if measured is None:
            self._is_asked_to_stop = True
            return
        metrics = self.progress.end_epoch() | measured
        self.progress.metrics |= metrics
        self.progress.validated_step = self.progress.step
        self.progress.judge(self.config)
        self.recorder.add(self.progress.step, metrics)
        self._show()
        if self.group.is_rank0:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            _log.info("epoch %d, step %d: %s", self.progress.epoch, self.progress.step, shown)
        if self.streams is not None:
            self._fetch_from_here()

    def stop_if_due(self) -> None:
        """Note why the training ends after this step, if it does."""
        reason = self.progress.reason_to_stop(
            self.config,
            self.plan,
            is_time_up=self._is_time_up,
            is_requested=self._is_asked_to_stop,
        )
        self.progress.stopped_by = reason.value if reason else ""

    def save_if_due(self) -> None:
        """Take a checkpoint if one is due after this step, or if it was the last."""
        after, rules = self._after_step(), self.config.save_rules
        is_due = save_due(
            after,
            rules,
            saved_step=self._saved_step,
            is_wanted=self._wants_checkpoint,
            is_retry_wanted=self._wants_retry,
        )
        if is_due is SaveDue.NO:
            return
        self._settle()
        self._wants_checkpoint = self._wants_retry = False
        pressure = backpressure(after, rules, is_busy=self._is_busy)
        if pressure is Backpressure.SKIP:
            self.recorder.rate("checkpoint/skipped", 1)
            return
        if pressure is Backpressure.WAIT:
            # A rank that still stores keeps all waiting, and none of them hangs.
            with self.watchdog.resting():
                self.group.raise_if_any_failed(self.checkpointer.wait_for_in_flight)
        self.progress.elapsed_s = self._elapsed_s()
        self._saved_step, self._is_scheduled = after.step, is_due is SaveDue.SCHEDULED
        self._save()
        self._saved_at = time.monotonic()

    def _save(self) -> None:
        state, frozen = self.state.capture(), self.trained.frozen()
        self.checkpointer.save(state, frozen, self.progress, is_scheduled=self._is_scheduled)

    def finish(self) -> None:
        """See the last checkpoint committed; where that fails, all ranks try again together."""
        while (state := self._state_of_last_save()) is not SaveState.SAVED:
            if state is SaveState.CLEARED:
                self._save()

    def _state_of_last_save(self) -> SaveState:
        # No rank still stores when rank 0 makes the way free for another try.
        self.group.raise_if_any_failed(self.checkpointer.wait)
        return self.group.call_on_rank0(self.checkpointer.resolve)

    def _after_step(self) -> AfterStep:
        progress = self.progress
        return AfterStep(
            step=progress.step,
            epoch=progress.epoch,
            step_in_epoch=progress.step_in_epoch,
            awaits_validation=progress.awaits_validation(self.plan),
            is_validated=progress.validated_step == progress.step,
            stopped_by=progress.stopped_by,
        )

    def _load_workload(self) -> Workload[Any]:
        """What is trained; `train_core.engine.tools.standalone` shortens it."""
        return load_recorded(self.folder, self.config)

    def _origin(self) -> Origin | None:
        """Whose weights the run begins with; None: the workload's own."""
        if not self.config.init_from:
            return None
        recorded = self.folder.record().origin
        return recorded and with_login(recorded, self.config, self.folder.storage)

    def _schedule_steps(self) -> int:
        """Steps of what the run was begun with: in epochs beyond that, the last rate is held."""
        folder, config = self.folder, self.config
        planned = folder.record().config.epochs if folder.exists() else config.epochs
        return planned * self.plan.steps_per_epoch

    def _all_state(self) -> TrainingState:
        state = TrainingState()
        self.trained.add_to(state)
        if self.streams is not None:
            capture = partial(self.streams.captured_everywhere, self.group)
            state.add("streams", capture, self.streams.restore)
        state.add("workload", self.workload.state_dict, self.workload.load_state_dict)
        state.add("progress", self.progress.capture, self.progress.restore)
        return state

    def _micro_batches(self, epoch: int, step_in_epoch: int) -> Iterable[list[MicroBatch]]:
        """For each of this rank's shards, the micro-batches of a step."""
        if not self.trained.is_sharded:
            return self.plan.micro_batches(epoch, step_in_epoch, self.shards)
        # Each pass gathers the weights from all ranks, so all have to do equally many.
        group = self.group
        return self.plan.equal_passes(epoch, step_in_epoch, group.world_size, group.rank)

    def _fetch_from_here(self) -> None:
        """Start to fetch batches from where the training stands: to its end, or a stream's epoch.

        Processes that fetch ahead so go on during validation, and start once.
        """
        progress, plan = self.progress, self.plan
        last_epoch = self.config.epochs if self.streams is None else progress.epoch + 1
        steps = range(progress.step, last_epoch * plan.steps_per_epoch)
        keys: Iterator[MicroBatch] = (
            micro
            for epoch, step in (divmod(step, plan.steps_per_epoch) for step in steps)
            for micro_batches in self._micro_batches(epoch, step)
            for micro in micro_batches
        )
        if self.streams is not None:
            self.batches = self.streams.batches(progress.epoch, self.shards, keys)
        elif not progress.stopped_by:
            assert not is_stream(self.train_set)
            self.batches = load_ahead(
                TrainBatches(self.workload, self.train_set, self.config.seed),
                keys,
                num_processes=self.config.data_workers,
                device=self.group.device,
            )

    def _forward(self, micro: MicroBatch) -> torch.Tensor:
        """The micro-batch's loss times its share of the step's samples."""
        config = self.config
        batch = to_device(next(self.batches), self.group.device, channels_last=config.channels_last)
        seed_generators(
            derive_seed(config.seed, FORWARD, micro.step, micro.micro_step, micro.shard)
        )
        _, loss = forward(self.workload, self.trained.forward_model, batch, config)
        return loss * micro.weight

    def _settle(self) -> None:
        """Read the last step's control word: its loss, and what any rank wants.

        Raises NotFiniteError before the step's state can be saved.
        """
        if self._unsettled is None:
            return
        word, metrics, num_samples = self._unsettled
        self._unsettled = None
        told = word.read()
        if not math.isfinite(told.loss):
            self.watchdog.rest()
            self.checkpointer.wait()
            newest = self.checkpointer.newest
            # No rank ends before the checkpoint under way is committed.
            last_good = self.group.broadcast_from_rank0(str(newest.name) if newest else None)
            raise NotFiniteError(self.progress.step, told.loss, last_good)
        self.progress.add_loss(told.loss, num_samples)
        self._wants_checkpoint |= told.wants_checkpoint
        self._wants_retry |= told.wants_retry
        self._is_time_up |= told.is_time_up
        self._is_asked_to_stop |= told.is_asked_to_stop
        self._is_busy = told.is_busy
        metrics = {"train/loss": told.loss, **metrics}
        if self._grad_norm is not None:
            metrics["train/grad_norm"] = float(self._grad_norm)
        self.progress.metrics |= metrics
        now = time.monotonic()
        rate = num_samples / (now - self._settled_at)
        self._settled_at = now
        self.recorder.add(self.progress.step, metrics, {"train/samples_per_s": rate})
        self._show()

    def _show(self) -> None:
        progress, config = self.progress, self.config
        total = progress.total_steps(config, self.plan)
        done = self._elapsed_s() - self._elapsed_before
        steps_here = progress.step - self._first_step
        rate = steps_here / done if done > 0 else 0.0
        self.recorder.show(
            attempt=self.attempt,
            step=progress.step,
            total_steps=total,
            epoch=progress.epoch,
            epochs=config.epochs,
            loss=progress.metrics.get("train/loss"),
            samples_per_s=rate * config.batch_size,
            eta_s=(total - progress.step) / rate if rate else None,
            metrics={k: v for k, v in progress.metrics.items() if k.startswith("validation/")},
        )

    def _elapsed_s(self) -> float:
        """Seconds of training, those before an interruption included."""
        return self._elapsed_before + time.monotonic() - self._began_at

    def _checkpoint_is_due(self) -> bool:
        since_last_s = time.monotonic() - self._saved_at
        return self.group.is_rank0 and is_due_by_time(
            self.config.save_rules, since_last_s=since_last_s, is_busy=self.checkpointer.is_busy
        )

    def _time_is_up(self) -> bool:
        reached = Reached(self.progress.step, self.progress.epoch, self._elapsed_s())
        limits = self.config.stop_limits
        return self.group.is_rank0 and has_reached(StopReason.MAX_DURATION, reached, limits)
