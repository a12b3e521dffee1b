"""The metrics of a split: of each of its samples alike, however they are cut into batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchmetrics import CatMetric, MaxMetric, MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix
from torchmetrics.wrappers import BootStrapper

from tests.rank.tiny import Linear, TinySettings
from train_core import Batch, TrainConfig
from train_core.errors import WorkloadError
from train_core.rank.metrics.evaluation_loop import (
    measure_shard,
    merge,
    merge_states,
    split_metrics,
    state_of,
)
from train_core.rank.metrics.forward import predict
from train_core.rank.metrics.scores import CONFUSION, prediction_metrics
from train_core.workload import indexed


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("eval_batch_size", [7, 16, 40, 64])
def test_the_loss_is_the_mean_over_all_samples(eval_batch_size: int, num_shards: int) -> None:
    """Also where the last batch is a smaller one."""
    workload, device = Linear(TinySettings()), torch.device("cpu")
    torch.manual_seed(0)
    model, dataset = workload.model(), indexed(workload, "test")
    config = TrainConfig(
        workload="tests.rank.tiny:Linear",
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


class Seen(Metric):
    """Counts samples, in a state or not."""

    full_state_update = False

    def __init__(self, *, has_state: bool, counts_in_it: bool) -> None:
        super().__init__()
        self.counts_in_it = counts_in_it
        self.total = 0
        if has_state:
            self.add_state("seen", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, outputs: torch.Tensor) -> None:
        if self.counts_in_it:
            self.seen += len(outputs)
        else:
            self.total += len(outputs)

    def compute(self) -> torch.Tensor:
        return torch.as_tensor(self.seen if self.counts_in_it else self.total)


class SeenByAll(Seen):
    """torchmetrics' own `merge_state` refuses it."""

    full_state_update = True


def measured(metric: object) -> dict[str, float]:
    class Counting(Linear):
        def metrics(self) -> dict[str, Metric]:
            return {"seen": metric}  # type: ignore[dict-item]  # it is what a user gives

        def update_metric(
            self, metric: Metric, outputs: torch.Tensor, batch: Batch, name: str
        ) -> None:
            metric.update(outputs)

    workload = Counting(TinySettings())
    config = TrainConfig(workload="x:Y", num_shards=2, eval_batch_size=16)
    data, model, cpu = indexed(workload, "validation"), workload.model(), torch.device("cpu")
    states = [measure_shard(workload, model, data, config, shard, cpu) for shard in (0, 1)]
    return merge(split_metrics(workload), states) | {"expected": len(data)}


@pytest.mark.parametrize("kind", [Seen, SeenByAll])
def test_a_metric_of_ones_own_is_merged_from_all_shards(kind: type[Seen]) -> None:
    found = measured(kind(has_state=True, counts_in_it=True))
    assert found["seen"] == found["expected"]


class Newest(Metric):
    """Its state is a number and no list, of which those of all shards are put together."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("newest", torch.tensor(0.0), dist_reduce_fx="cat")

    def update(self, values: torch.Tensor) -> None:
        self.newest = values[-1]

    def compute(self) -> torch.Tensor:
        return torch.atleast_1d(self.newest)[-1]


def parts_of(values: torch.Tensor, cuts: list[int]) -> list[torch.Tensor]:
    return list(torch.tensor_split(values, sorted(cut % (len(values) + 1) for cut in cuts)))


@given(
    values=st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
def test_states_of_shards_are_merged_as_over_the_ranks_of_a_group(
    values: list[float], cuts: list[int]
) -> None:
    x = torch.tensor(values)
    metrics: dict[str, tuple[Metric, Metric]] = {
        "cat": (CatMetric(), CatMetric()),
        "max": (MaxMetric(), MaxMetric()),
        "mean": (MeanMetric(), MeanMetric()),
        "newest": (Newest(), Newest()),
    }
    for name, (whole, of_shard) in metrics.items():
        whole.update(x)
        states: list[dict[str, Any]] = []
        for part in parts_of(x, cuts):
            of_shard.reset()
            if len(part):
                of_shard.update(part)
            states.append(state_of(of_shard) if len(part) else {})
        found, expected = merge_states(of_shard, states).compute(), whole.compute()
        if name == "cat":
            # In the order of the shards.
            assert torch.equal(found, expected)
        else:
            assert float(found) == pytest.approx(float(expected), rel=1e-5, abs=1e-5)


class Named(Linear):
    """Tells its metrics apart by their names."""

    def metrics(self) -> dict[str, Metric]:
        return {"ones": MeanMetric(), "twos": MeanMetric()}

    def update_metric(self, metric: Metric, outputs: torch.Tensor, batch: Batch, name: str) -> None:
        metric.update({"ones": 1.0, "twos": 2.0}[name])


class Nameless(Named):
    """As a workload was written before there was a name."""

    def update_metric(self, metric: Metric, outputs: torch.Tensor, batch: Batch) -> None:  # type: ignore[override]  # the test's subject
        metric.update(3.0)


@pytest.mark.parametrize(("kind", "expected"), [(Named, (1.0, 2.0)), (Nameless, (3.0, 3.0))])
def test_a_workload_is_told_which_metric_it_updates_if_it_asks(
    kind: type[Named], expected: tuple[float, float]
) -> None:
    workload, config = kind(TinySettings()), TrainConfig(workload="x:Y", eval_batch_size=16)
    data, model, cpu = indexed(workload, "validation"), workload.model(), torch.device("cpu")
    states = [measure_shard(workload, model, data, config, 0, cpu)]
    found = merge(split_metrics(workload), states)
    assert (found["ones"], found["twos"]) == expected


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (Seen(has_state=False, counts_in_it=False), r"\(Seen\) has no state: .*add_state"),
        (Seen(has_state=True, counts_in_it=False), "'total' outside of its states: .*add_state"),
        (BootStrapper(MeanMetric(), mean=True), "has another metric in it"),
        (nn.Linear(1, 1), "is a Linear: `metrics` gives torchmetrics.Metric"),
    ],
)
def test_a_metric_that_cannot_be_merged_from_shards_is_refused(metric: object, told: str) -> None:
    with pytest.raises(WorkloadError, match=f"metric 'seen' .*{told}"):
        measured(metric)


class OwnNames(Linear):
    """Its metrics have the names of what an evaluation stores beside them."""

    def metrics(self) -> dict[str, Metric]:
        return {"scores": MulticlassAccuracy(3), "confusion_matrix": MulticlassAccuracy(3)}


def test_a_metric_may_be_named_as_what_an_evaluation_measures_beside_it() -> None:
    workload, config = OwnNames(TinySettings()), TrainConfig(workload="x:Y", eval_batch_size=16)
    data, model, cpu = indexed(workload, "validation"), workload.model(), torch.device("cpu")
    alone = merge(split_metrics(workload), [measure_shard(workload, model, data, config, 0, cpu)])
    metrics = split_metrics(workload) | prediction_metrics(workload, len(data))
    states = measure_shard(workload, model, data, config, 0, cpu, metrics)
    assert merge(split_metrics(workload), [states]) == alone
    counts = merge_states(prediction_metrics(workload, len(data))[CONFUSION], [states[CONFUSION]])
    assert counts.metric_state["confmat"].sum() == len(data)


class Precision(Linear):
    """Notes in which precision it predicts."""

    class_names = ("one", "two", "three", "four")

    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.types: set[torch.dtype] = set()

    def predictions(self, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
        self.types.add((torch.eye(2) @ torch.eye(2)).dtype)
        return super().predictions(outputs)


@pytest.mark.parametrize(("precision", "expected"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_evaluation_predicts_in_the_precision_in_which_inference_does(
    precision: str, expected: str
) -> None:
    workload, cpu = Precision(TinySettings()), torch.device("cpu")
    config = TrainConfig(workload="x:Y", precision=precision)
    data, model = indexed(workload, "validation"), workload.model()
    metrics = {CONFUSION: MulticlassConfusionMatrix(num_classes=4)}
    measure_shard(workload, model, data, config, 0, cpu, metrics)
    of_evaluation, workload.types = workload.types, set()
    columns = data.__getitems__(range(4))  # type: ignore[attr-defined]
    with torch.no_grad():
        predict(workload, model, workload.prepare(columns, None), config)
    assert of_evaluation == workload.types == {getattr(torch, expected)}
