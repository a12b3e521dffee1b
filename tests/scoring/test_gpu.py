"""A model on a GPU is measured, compared and asked for predictions as it is on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.scoring.shops import customers
from tests.scoring.tables import SHOPS, scored, trained
from train_core.rank.metrics.evaluation_loop import merge, split_metrics
from train_core.scoring.evaluate import load_model, measure_one_shard
from train_core.scoring.gate_rows import Model, Rows, measure_cost, score_rows
from train_core.storage.run_folder import RunFolder

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]


@pytest.fixture(params=DEVICES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunFolder:
    folder = RunFolder(str(tmp_path), "run")
    return trained(folder, SHOPS, gpus_per_worker=int(request.param == "cuda"))


def test_what_is_measured_agrees_with_the_rows_of_the_gate_and_with_predictions(
    run: RunFolder, tmp_path: Path
) -> None:
    config = run.record().config
    name = str(run.checkpoints()[-1].name)
    workload, _, device = load_model(run.url, config, name)
    assert device.type == ("cuda" if config.uses_gpu else "cpu")

    _, states = measure_one_shard(run.url, config, name, "test", 0, 0)
    metrics = merge(split_metrics(workload), [states])
    model, rows = Model(run.url, config, name), Rows(run.url, config, "test", "accuracy")
    compared = score_rows(model, rows, 0)
    assert compared is not None
    assert not compared.failure
    right = compared.predictions == compared.targets
    assert right.mean() == pytest.approx(metrics["accuracy"])
    assert all(cost > 0 for cost in measure_cost(model, rows))

    source = tmp_path / "customers"
    source.mkdir()
    pq.write_table(customers(compared.num_rows), source / "part.parquet")
    table, _ = scored(run, source)
    found = table.read().column("prediction").to_numpy()
    assert np.array_equal(found, compared.predictions)
