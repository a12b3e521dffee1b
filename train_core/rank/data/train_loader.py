"""The loader of the training split: one stream of micro-batches, each with its batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset, Stream, is_stream
from train_core.errors import EvertrainError
from train_core.policy.samples.sharding import shards_of_rank
from train_core.policy.samples.steps import MicroBatch, Pass, in_order
from train_core.rank.data.batches import PlannedBatch, StreamBatches, TrainBatches
from train_core.rank.data.data_processes import end_processes, load_ahead
from train_core.rank.distributed.group import Group
from train_core.workload import Batch, Workload


class TrainLoader:
    """The micro-batches that this rank computes, in the order of the plan, with their batches."""

    def __init__(
        self,
        workload: Workload[Any],
        dataset: Dataset | Stream,
        config: TrainConfig,
        group: Group,
        *,
        has_equal_passes: bool,
    ) -> None:
        self.plan = config.step_plan(len(dataset))
        self.shards = shards_of_rank(config.shards, group.world_size, group.rank)
        self._config = config
        self._group = group
        self._has_equal_passes = has_equal_passes
        self.streams = StreamBatches(workload, dataset, config) if is_stream(dataset) else None
        """The training split, if it is a stream."""
        self.known_at = 0
        """The number of steps after which its shards had the positions that all ranks know."""
        self._batches = None if is_stream(dataset) else TrainBatches(workload, dataset, config.seed)
        self._loaded: Iterator[PlannedBatch | EvertrainError] = iter(())

    def start(self, epoch: int, step: int, known_at: int | None = None) -> None:
        """Start to fetch after `step` steps, to the end of the training or of a stream's epoch.

        So the processes that fetch ahead start once and go on during validation. The positions of
        streams that were restored are those after `known_at` steps, by default `step`.
        """
        if self.streams is not None:
            self.known_at = step if known_at is None else known_at
            skipped = self._passes(self.known_at, step)
            passes = self._passes(step, (epoch + 1) * self.plan.steps_per_epoch)
            self._loaded = self.streams.batches(epoch, self.shards, skipped, passes)
        else:
            assert self._batches is not None
            self._loaded = load_ahead(
                self._batches,
                self._passes(step, self._config.epochs * self.plan.steps_per_epoch),
                num_processes=self._config.data_workers,
                device=self._group.device,
            )

    def capture_streams(self, step: int) -> dict[str, Any]:
        """The positions of all shards' streams after so many steps; all ranks call it together."""
        assert self.streams is not None
        found = self.streams.captured_everywhere(self._group)
        self.known_at = step
        return found

    def batches_of(self, shard: int) -> Iterator[tuple[MicroBatch, Batch, bool]]:
        """The next step's micro-batches of a shard with their batches, and whether it is the last.

        All shards of the rank have to be asked for, in their order.
        """
        is_last = False
        while not is_last:
            fetched = next(self._loaded)
            if isinstance(fetched, EvertrainError):
                raise fetched
            planned, batch = fetched
            assert planned.shard == shard, f"shard {shard} is asked for, {planned} is next"
            is_last = planned.is_last
            if planned.micro_batch is not None:
                yield planned.micro_batch, batch, is_last

    def close(self, *, at_once: bool = False) -> None:
        """End the processes that fetch ahead; `at_once`, also in the middle of a sample."""
        end_processes(self._loaded, at_once=at_once)
        self._loaded = iter(())

    def _passes(self, first_step: int, last_step: int) -> Iterator[Pass]:
        """The passes that this rank computes from a step to another one."""
        for step in range(first_step, last_step):
            epoch, step_in_epoch = divmod(step, self.plan.steps_per_epoch)
            if self._has_equal_passes:
                # Each pass gathers the weights from all ranks, so all have to do equally many.
                size, rank = self._group.world_size, self._group.rank
                work = self.plan.equal_passes(epoch, step_in_epoch, size, rank)
            else:
                work = list(self.plan.micro_batches(epoch, step_in_epoch, self.shards))
            yield from in_order(self.shards, work)
