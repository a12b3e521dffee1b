"""The metrics of a split: of each of its samples alike, however they are cut into batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.engine.linear import Linear
from tests.engine.tiny import TinySettings
from train_core import TrainConfig
from train_core.engine.metrics.evaluation_loop import measure_shard, merge, split_metrics
from train_core.workload import indexed


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("eval_batch_size", [7, 16, 40, 64])
def test_the_loss_is_the_mean_over_all_samples(eval_batch_size: int, num_shards: int) -> None:
    """Also where the last batch is a smaller one."""
    workload, device = Linear(TinySettings()), torch.device("cpu")
    torch.manual_seed(0)
    model, dataset = workload.model(), indexed(workload, "test")
    config = TrainConfig(
        workload="tests.engine.linear:Linear",
        eval_batch_size=eval_batch_size,
        num_shards=num_shards,
    )
    states = [
        measure_shard(workload, model, dataset, config, shard, device)
        for shard in range(num_shards)
    ]
    found = merge(split_metrics(workload), states)
    columns = dataset.__getitems__(range(len(dataset)))  # type: ignore[attr-defined]
    batch = workload.prepare(columns, None)
    with torch.inference_mode():
        expected = nn.functional.cross_entropy(model(batch["inputs"]), batch["targets"])
    assert found["loss"] == pytest.approx(float(expected), rel=1e-6)
