"""Validation inside the training loop: every rank measures its shards, all merge alike."""

from __future__ import annotations

from typing import Any

from torch import nn

from train_core.config import TrainConfig
from train_core.engine.group import Group
from train_core.engine.measure import measure_shard, merge, split_metrics
from train_core.engine.watchdog import Watchdog
from train_core.policy.sharding import shards_of_rank
from train_core.workload import Dataset, Workload


def validate(
    workload: Workload[Any],
    model: nn.Module,
    dataset: Dataset,
    config: TrainConfig,
    group: Group,
    watchdog: Watchdog,
) -> dict[str, float]:
    """The metrics of the validation split, `validation/<name>`, the same on every rank."""
    mine = [
        measure_shard(workload, model, dataset, config, shard, group.device, on_batch=watchdog.move)
        for shard in shards_of_rank(config.shards, group.world_size, group.rank)
    ]
    # Another rank may have more to measure; it has a watchdog of its own.
    with watchdog.resting():
        gathered = group.gather(mine)
    # Shards are consecutive over the ranks, so this is their order.
    shards = [states for of_rank in gathered for states in of_rank]
    merged = merge(split_metrics(workload), shards)
    return {f"validation/{name}": value for name, value in merged.items()}
