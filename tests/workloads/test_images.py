from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from train_core.datasets.protocols import Columns
from train_core.errors import DataError
from train_core.loading import load_workload
from train_core.workload import Workload
from train_core.workloads.images import one_cycle

DIGITS = "train_core.workloads.digits:Digits"


@pytest.fixture
def workload() -> Workload[Any]:
    return load_workload(DIGITS, {})


def test_pixels_become_floats_between_minus_one_and_one(workload: Workload[Any]) -> None:
    images = np.zeros((2, 8, 8), np.uint8)
    images[1] = 16
    batch = workload.prepare({"image": images, "label": np.array([3, 4], np.uint8)}, None)
    assert batch["inputs"].shape == (2, 1, 8, 8)
    assert batch["inputs"].dtype == torch.float32
    assert batch["inputs"].unique().tolist() == [-1, 1]
    assert batch["targets"].dtype == torch.int64
    assert batch["targets"].tolist() == [3, 4]


def test_without_labels_a_batch_has_inputs_only(workload: Workload[Any]) -> None:
    assert workload.prepare({"image": np.zeros((1, 8, 8), np.float64)}, None).keys() == {"inputs"}


@pytest.mark.filterwarnings("error")
def test_read_only_columns_are_neither_changed_nor_warned_of(workload: Workload[Any]) -> None:
    images, labels = np.full((2, 8, 8), 7, np.float32), np.array([1, 2])
    images.flags.writeable = labels.flags.writeable = False
    workload.prepare({"image": images, "label": labels}, None)
    assert (images == 7).all()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"pixels": np.zeros((2, 8, 8))}, "column 'image' is missing, found pixels"),
        ({"image": np.zeros((2, 64))}, r"shape \(2, 64\), expected \(N, 8, 8\)"),
    ],
)
def test_other_columns_are_refused_in_plain_words(
    workload: Workload[Any], columns: Columns, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        workload.prepare(columns, None)


def test_predictions_are_classes_and_probabilities(workload: Workload[Any]) -> None:
    logits = torch.randn(5, 10, dtype=torch.bfloat16)
    found = workload.predictions(logits)
    assert found.keys() == {"prediction", "probabilities"}
    assert found["prediction"].dtype == torch.int64
    assert found["prediction"].tolist() == logits.argmax(1).tolist()
    assert found["probabilities"].dtype == torch.float32
    torch.testing.assert_close(found["probabilities"].sum(1), torch.ones(5))


def test_accuracy_counts_samples_and_f1_averages_classes(workload: Workload[Any]) -> None:
    targets = torch.tensor([0, 0, 0, 1])
    outputs = torch.nn.functional.one_hot(torch.tensor([0, 0, 0, 0]), 10).float()
    metrics = workload.metrics()
    for name, metric in metrics.items():
        workload.update_metric(metric, outputs, {"targets": targets}, name)
    assert float(metrics["accuracy"].compute()) == 0.75
    assert float(metrics["f1"].compute()) == pytest.approx((6 / 7 + 0) / 2)


def test_biases_and_norms_do_not_decay(workload: Workload[Any]) -> None:
    decaying, constant = workload.optimizer(workload.model()).param_groups
    assert decaying["weight_decay"] == workload.settings.weight_decay
    assert constant["weight_decay"] == 0
    assert all(p.ndim > 1 for p in decaying["params"])
    assert all(p.ndim == 1 for p in constant["params"])


@pytest.mark.parametrize("total_steps", [1, 2, 9, 10, 1000])
def test_one_cycle_rises_to_the_peak_once_and_stays_positive(total_steps: int) -> None:
    shares = [one_cycle(step, total_steps) for step in range(total_steps + 50)]
    assert max(shares) == 1
    peak = shares.index(1)
    assert shares[: peak + 1] == sorted(shares[: peak + 1])
    assert shares[peak:] == sorted(shares[peak:], reverse=True)
    assert shares[total_steps:] == [pytest.approx(0.01)] * 50


def test_the_schedules_state_is_json_and_restores_the_rate(workload: Workload[Any]) -> None:
    def schedule() -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        optimizer = workload.optimizer(workload.model())
        return optimizer, workload.schedule(optimizer, 40)

    optimizer, whole = schedule()
    for _ in range(17):
        optimizer.step()
        whole.step()
    other, resumed = schedule()
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for _ in range(5):
        for stepped, scheduler in ((optimizer, whole), (other, resumed)):
            stepped.step()
            scheduler.step()
        assert whole.get_last_lr() == resumed.get_last_lr()
        assert [g["lr"] for g in other.param_groups] == [g["lr"] for g in optimizer.param_groups]
