"""A metric that says what is better is not ranked the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest
import torch
from torch import Tensor
from torchmetrics import MeanMetric, MeanSquaredError, Metric
from torchmetrics.classification import BinaryAccuracy

from tests.rank.tiny import Tiny, TinySettings
from train_core.config import TrainConfig
from train_core.errors import ConfigError
from train_core.rank.metrics.evaluation_loop import check_monitor, check_order

Order = Literal["max", "min"]


class Ece(Metric):
    """The expected calibration error, as people write it."""

    higher_is_better = False
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take nothing: only the attribute is asked."""

    def compute(self) -> Tensor:
        return self.total


class Calibrated(Tiny):
    def metrics(self) -> Mapping[str, Metric]:
        return {"ece": Ece()}


@pytest.mark.promise("rehearsal")
@pytest.mark.parametrize(
    ("metric", "wrong", "right"),
    [(MeanSquaredError(), "max", "min"), (BinaryAccuracy(), "min", "max"), (Ece(), "max", "min")],
)
def test_an_order_that_would_choose_the_worst_is_refused(
    metric: Metric, wrong: Order, right: Order
) -> None:
    check_order("validation/own", metric, right, "monitor_order")
    told = f"validation/own is better the .*, and monitor_order is {wrong}.*--monitor-order {right}"
    with pytest.raises(ConfigError, match=told):
        check_order("validation/own", metric, wrong, "monitor_order")


@pytest.mark.parametrize("order", ["max", "min"])
def test_a_metric_that_does_not_say_what_is_better_may_have_any_order(order: Order) -> None:
    check_order("validation/own", MeanMetric(), order, "monitor_order")


def test_a_new_run_is_refused_by_its_monitor_and_a_run_of_before_goes_on() -> None:
    workload = Calibrated(TinySettings())
    config = TrainConfig(workload="tests:Own", monitor="validation/ece")
    with pytest.raises(ConfigError, match="validation/ece is better the lower it is"):
        check_monitor(workload, config)
    check_monitor(workload, config, is_new=False)
    check_monitor(workload, config.model_copy(update={"monitor_order": "min"}))
