"""The forward and backward passes of a step: what the optimizer then steps from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from train_core.config import TrainConfig
from train_core.policy.samples.randomness import FORWARD, derive_seed
from train_core.policy.samples.steps import MicroBatch
from train_core.rank.data.batches import to_device
from train_core.rank.data.train_loader import TrainLoader
from train_core.rank.distributed.group import Group
from train_core.rank.learner import Learner
from train_core.rank.metrics.forward import forward, nothing_of
from train_core.workload import Batch, Workload, seed_generators


def backward_passes(
    learner: Learner,
    loader: TrainLoader,
    weighted_loss: Callable[[MicroBatch, Batch], Tensor],
    on_loss: Callable[[int, Tensor], None] | None = None,
) -> None:
    """Compute the gradients of the next step's shards on this rank.

    `on_loss` is called with the shard and the loss before each backward pass.
    """
    learner.begin_step()
    for shard in loader.shards:
        with learner.shard(shard):
            for micro, batch, is_last in loader.batches_of(shard):
                loss = weighted_loss(micro, batch)
                if on_loss:
                    on_loss(shard, loss)
                if is_last:
                    learner.reducer.expect_last_backward()
                loss.backward()


def weighted_loss(
    workload: Workload[Any],
    learner: Learner,
    config: TrainConfig,
    group: Group,
    micro: MicroBatch,
    batch: Batch,
) -> Tensor:
    """The micro-batch's loss times its share of the step's samples, or what its weight is."""
    share = learner.share_of(micro, batch)
    batch = to_device(batch, group.device, channels_last=config.channels_last)
    seed_generators(derive_seed(config.seed, FORWARD, micro.step, micro.micro_step, micro.shard))
    outputs, loss = forward(workload, learner.forward_model, batch, config)
    # A mean over nothing is NaN, and so would be its gradients.
    return loss * share if share or micro.weight == 0 else nothing_of(outputs)
