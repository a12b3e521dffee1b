"""The plan of an epoch: which samples each shard of each micro-step of each step computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from train_core.errors import DataError
from train_core.policy.sharding import split_evenly


@dataclass(frozen=True)
class MicroBatch:
    """The samples of one forward pass: places in the epoch's order, and what they weigh."""

    epoch: int
    step: int
    """Optimizer steps done before this one, over all epochs."""
    micro_step: int
    shard: int
    places: range
    weight: float
    """This micro-batch's share of the step's samples."""


@dataclass(frozen=True)
class StepPlan:
    """How epochs of `num_samples` are cut into steps, micro-steps and shards."""

    num_samples: int
    batch_size: int
    accumulation_steps: int
    num_shards: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.num_samples == 0:
            raise DataError("the training split is empty: nothing to train on")
        if self.steps_per_epoch == 0:
            raise DataError(
                f"drop_last leaves nothing: {self.num_samples} samples are fewer than "
                f"batch_size {self.batch_size}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        full, rest = divmod(self.num_samples, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def step_samples(self, step_in_epoch: int) -> range:
        """The places, in the epoch's order, of a step's samples."""
        begin = step_in_epoch * self.batch_size
        return range(begin, min(begin + self.batch_size, self.num_samples))

    def micro_batches(
        self, epoch: int, step_in_epoch: int, shards: range
    ) -> Iterator[list[MicroBatch]]:
        """For each of `shards`, its micro-batches in order; without those of no samples."""
        samples = self.step_samples(step_in_epoch)
        micro_steps = split_evenly(samples, self.accumulation_steps)
        cut = [split_evenly(micro_step, self.num_shards) for micro_step in micro_steps]
        step = epoch * self.steps_per_epoch + step_in_epoch
        for shard in shards:
            yield [
                MicroBatch(
                    epoch, step, index, shard, places[shard], len(places[shard]) / len(samples)
                )
                for index, places in enumerate(cut)
                if places[shard]
            ]


def due(every: int, count: int) -> bool:
    """Whether something that happens at every `every`-th count happens now; 0: never."""
    return every > 0 and count > 0 and count % every == 0
