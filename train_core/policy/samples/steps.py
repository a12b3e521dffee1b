"""The plan of an epoch: which samples each shard of each micro-step of each step computes.

Positions only; sample_order says which sample is at a position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from train_core.errors import DataError
from train_core.policy.options import Options
from train_core.policy.samples.sharding import shards_of_rank, split_evenly


class BatchOptions(Options):
    """How samples become batches."""

    batch_size: int = Field(
        default=128, ge=1, description="Samples of one optimizer step, over all workers."
    )
    accumulation_steps: int = Field(
        default=1, ge=1, description="Micro-batches into which a batch is cut, to save memory."
    )
    drop_last: bool = Field(
        default=False, description="Leave out the last, smaller batch of an epoch."
    )


@dataclass(frozen=True)
class MicroBatch:
    """The samples of one forward pass: positions in the epoch's order, and what they weigh."""

    epoch: int
    step: int
    """Optimizer steps done before this one, over all epochs."""
    micro_step: int
    shard: int
    positions: range
    weight: float
    """This micro-batch's share of the step's samples; 0: a pass for the other ranks' sake."""


@dataclass(frozen=True)
class Pass:
    """A forward and backward pass in its place among those that a rank does."""

    shard: int
    """The shard whose gradients it adds to."""
    micro_batch: MicroBatch | None
    """None: the shard has no samples in the step, and nothing is computed."""
    is_last: bool
    """Whether it is the shard's last one of the step."""


@dataclass(frozen=True)
class StepPlan:
    """How epochs of `num_samples` are cut into steps, micro-steps and shards."""

    num_samples: int
    options: BatchOptions
    num_shards: int

    def __post_init__(self) -> None:
        if self.num_samples == 0:
            raise DataError("the training split is empty: nothing to train on")
        if self.steps_per_epoch == 0:
            raise DataError(
                f"drop_last leaves nothing: {self.num_samples} samples are fewer than "
                f"batch_size {self.options.batch_size}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        full, rest = divmod(self.num_samples, self.options.batch_size)
        return full + (rest > 0 and not self.options.drop_last)

    def step_samples(self, step_in_epoch: int) -> range:
        """The positions, in the epoch's order, of a step's samples."""
        size = self.options.batch_size
        begin = step_in_epoch * size
        return range(begin, min(begin + size, self.num_samples))

    def micro_batches(
        self, epoch: int, step_in_epoch: int, shards: range
    ) -> Iterator[list[MicroBatch]]:
        """For each of `shards`, its micro-batches in order; without those of no samples."""
        samples = self.step_samples(step_in_epoch)
        micro_steps = split_evenly(samples, self.options.accumulation_steps)
        cut = [split_evenly(micro_step, self.num_shards) for micro_step in micro_steps]
        step = epoch * self.steps_per_epoch + step_in_epoch
        for shard in shards:
            yield [
                MicroBatch(
                    epoch,
                    step,
                    index,
                    shard,
                    positions[shard],
                    len(positions[shard]) / len(samples),
                )
                for index, positions in enumerate(cut)
                if positions[shard]
            ]

    def has_lone_samples(self, num_steps: int) -> bool:
        """Whether a forward pass of the first `num_steps` steps has one sample only."""
        # All steps of an epoch are alike but the last.
        return any(
            len(micro.positions) == 1
            for step_in_epoch in {0, min(num_steps, self.steps_per_epoch) - 1}
            for micro_batches in self.micro_batches(0, step_in_epoch, range(self.num_shards))
            for micro in micro_batches
        )

    def equal_passes(
        self, epoch: int, step_in_epoch: int, world_size: int, rank: int
    ) -> list[list[MicroBatch]]:
        """A rank's micro-batches as `micro_batches` gives them, as many on every rank.

        A rank that has fewer repeats the step's first one with weight 0 after its last shard.
        Rank 0, which has the longest parts of every cut, has the most and never repeats any.
        """
        of_first, mine = (
            list(
                self.micro_batches(
                    epoch, step_in_epoch, shards_of_rank(self.num_shards, world_size, number)
                )
            )
            for number in (0, rank)
        )
        missing = sum(map(len, of_first)) - sum(map(len, mine))
        # Pass, shard and seed are those of the real one: what is finite there is finite here.
        mine[-1] += [replace(of_first[0][0], weight=0.0) for _ in range(missing)]
        return mine

    def needs_padding(self, world_size: int) -> bool:
        """Whether a rank has fewer micro-batches than another in any step."""
        # All steps are alike but the last.
        return any(
            micro.weight == 0
            for step_in_epoch in {0, self.steps_per_epoch - 1}
            for rank in range(world_size)
            for micro_batches in self.equal_passes(0, step_in_epoch, world_size, rank)
            for micro in micro_batches
        )


def in_order(shards: range, micro_batches: Sequence[Sequence[MicroBatch]]) -> Iterator[Pass]:
    """The passes of a step, one shard after the other; each shard has one at least."""
    for shard, of_shard in zip(shards, micro_batches, strict=True):
        if not of_shard:
            yield Pass(shard, None, is_last=True)
        for number, micro_batch in enumerate(of_shard, 1):
            yield Pass(shard, micro_batch, is_last=number == len(of_shard))


def due(every: int, count: int) -> bool:
    """Whether something that happens at every `every`-th count happens now; 0: never."""
    return every > 0 and count > 0 and count % every == 0
