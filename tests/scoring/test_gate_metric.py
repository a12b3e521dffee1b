"""The metric by which a gate decides, and options that cannot be met, before any compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics

from tests.rank.tiny import Tiny, TinySettings
from train_core import TrainConfig
from train_core.errors import ConfigError
from train_core.policy.champion.gate_options import GateOptions
from train_core.rank.metrics.evaluation_loop import split_metrics
from train_core.scoring.gate_metric import check_gate, metric_of


class Averaged(torchmetrics.Metric):
    """Its shards are averaged, which adds up to nothing that a row has a part of."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("value", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.value += outputs.mean()

    def compute(self) -> torch.Tensor:
        return torch.as_tensor(self.value)


class Correlated(Tiny):
    """Has a metric whose states are no sums."""

    class_names = ()

    def metrics(self) -> dict[str, torchmetrics.Metric]:
        return {"r": Averaged(), "error": torchmetrics.MeanSquaredError()}


def config(**asked: Any) -> TrainConfig:
    given = {"workload": "tests.rank.tiny:Tiny", "monitor": "validation/accuracy"}
    return TrainConfig.model_validate(given | asked)


@pytest.mark.parametrize(
    ("asked", "options", "expected"),
    [
        ({}, {}, ("accuracy", "max")),
        ({"monitor": "validation/loss", "monitor_order": "min"}, {}, ("loss", "min")),
        # What is monitored is of the training alone.
        ({"monitor": "train/grad_norm"}, {}, ("loss", "min")),
        ({"monitor": "eval/accuracy"}, {}, ("accuracy", "max")),
        # As a training function names it.
        ({"monitor": "eval/count", "monitor_order": "min"}, {}, ("count", "min")),
        ({"monitor": "eval/first/count", "monitor_order": "min"}, {}, ("count", "min")),
        ({"monitor": "eval/other", "monitor_order": "max"}, {}, ("loss", "min")),
        ({}, {"gate_metric": "loss"}, ("loss", "min")),
        ({}, {"gate_metric": "test/count"}, ("count", "max")),
        ({}, {"gate_metric": "count", "gate_order": "min"}, ("count", "min")),
        ({"monitor_order": "min"}, {}, ("accuracy", "min")),
        ({"monitor_order": "min"}, {"gate_metric": "count"}, ("count", "max")),
        ({"monitor_order": "min"}, {"gate_order": "max"}, ("accuracy", "max")),
    ],
)
def test_the_metric_is_the_monitored_one_unless_another_is_asked_for(
    asked: dict[str, Any], options: dict[str, Any], expected: tuple[str, str]
) -> None:
    names = list(split_metrics(Tiny(TinySettings())))
    assert metric_of(config(**asked), GateOptions(**options), names) == expected


@pytest.mark.parametrize("name", ["iou/car", "top/5", "test/seen", "a b", "share<30", "x@1"])
def test_a_name_with_a_slash_is_monitored_and_compared_as_itself(name: str) -> None:
    names = ["loss", name, "car", "5", "seen"]
    monitored = config(monitor=f"validation/{name}")
    assert metric_of(monitored, GateOptions(), names) == (name, "max")
    if name != "test/seen":
        assert metric_of(config(), GateOptions(gate_metric=name), names) == (name, "max")
    assert metric_of(config(), GateOptions(gate_metric=f"test/{name}"), names) == (name, "max")


@pytest.mark.promise("gate-rows")
@pytest.mark.parametrize(
    ("workload", "options", "told"),
    [
        (Tiny, {"gate_metric": "f1"}, "'f1' is not measured on the test split: .* gives loss, acc"),
        (Tiny, {"gate_metric": "validation/accuracy"}, "is not measured on the test split"),
        (Correlated, {"gate_metric": "r"}, "'r' cannot be compared row by row"),
        (
            Correlated,
            {"gate_metric": "error", "gate_order": "min", "max_recall_drop": 0.1},
            "0.1 needs classes",
        ),
        (
            Correlated,
            {"gate_metric": "error"},
            r"error is better the lower it is, as \w+.higher_is_better says, and gate_order is max",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_the_training(
    workload: type[Tiny], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_gate(workload(TinySettings()), config(), GateOptions(**options))


def test_a_gate_that_decides_by_another_metric_than_the_monitored_one_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_gate(Tiny(TinySettings()), config(monitor="train/grad_norm"), GateOptions())
    assert "train/grad_norm: the gate decides by the loss" in caplog.text


def test_what_can_be_compared_is_not_refused() -> None:
    check_gate(Tiny(TinySettings()), config(), GateOptions(max_recall_drop=0.1))
    lowest = GateOptions(gate_metric="error", gate_order="min")
    check_gate(Correlated(TinySettings()), config(), lowest)
