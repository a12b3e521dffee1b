"""Validation inside the training loop: every rank measures its shards, all merge alike."""

from __future__ import annotations

from typing import Any

from torch import nn

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset
from train_core.policy.metric_names import VALIDATION, full_name
from train_core.policy.samples.sharding import shards_of_rank
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.stop_requests import StopRequests
from train_core.rank.distributed.watchdog import Watchdog
from train_core.rank.metrics.evaluation_loop import (
    MetricStates,
    measure_shard,
    merge,
    split_metrics,
)
from train_core.workload import Workload


def validate(
    workload: Workload[Any],
    model: nn.Module,
    dataset: Dataset,
    config: TrainConfig,
    group: Group,
    watchdog: Watchdog,
    stop_requests: StopRequests,
) -> dict[str, float] | None:
    """The metrics of the validation split, `validation/<name>`, the same on every rank.

    None on all of them if one received a request to stop before it had measured its shards.
    """

    def go_on() -> None:
        watchdog.move()
        stop_requests.check_lost()
        if stop_requests.is_asked:
            raise _AskedToStopError

    mine: list[MetricStates] | None
    try:
        mine = [
            measure_shard(workload, model, dataset, config, shard, group.device, on_batch=go_on)
            for shard in shards_of_rank(config.shards, group.world_size, group.rank)
        ]
    except _AskedToStopError:
        mine = None
    # Another rank may have more to measure; it has a watchdog of its own.
    with watchdog.resting():
        gathered = group.gather(mine)
    complete = [of_rank for of_rank in gathered if of_rank is not None]
    if len(complete) < len(gathered):
        return None
    # Shards are consecutive over the ranks, so this is their order.
    shards = [states for of_rank in complete for states in of_rank]
    merged = merge(split_metrics(workload), shards)
    return {full_name(VALIDATION, name): value for name, value in merged.items()}


class _AskedToStopError(Exception):
    """Ends a measurement between two batches."""
