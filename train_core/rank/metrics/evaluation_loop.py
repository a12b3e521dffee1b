"""Metrics of a split: each sample once, in fixed batches, merged in the order of shards.

A split is cut into batches of `eval_batch_size` and those into `num_shards` consecutive blocks.
The result has the same bits whichever rank measures a block and whichever merges them.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset, Stream, fetch
from train_core.errors import ConfigError, DataError, WorkloadError
from train_core.policy.checkpoints.selection import Order
from train_core.policy.metric_names import LOSS, VALIDATION, full_name
from train_core.policy.samples.randomness import EVALUATE, derive_seed
from train_core.policy.samples.sharding import split_evenly
from train_core.quick_metrics import MeanMetric, Metric, dim_zero_cat, dim_zero_sum
from train_core.rank.data.batches import prepare, to_device
from train_core.rank.metrics.forward import autocast, forward, predictions_of
from train_core.rank.metrics.scores import OF_PREDICTIONS, update_prediction_metric
from train_core.text.shown_text import few_of
from train_core.workload import (
    Batch,
    Workload,
    seed_generators,
    update_metric,
    weighs,
    weight_of,
)

_OF_ANY_METRIC = frozenset(vars(MeanMetric())) - {"value", "mean_value", "weight"}
"""What torchmetrics itself keeps in a metric, and changes."""

MetricStates = dict[str, dict[str, Any]]
"""Each metric's state, by the metric's name: small tensors on the CPU; empty without rows."""


def batches_of_shard(num_samples: int, batch_size: int, num_shards: int, shard: int) -> list[range]:
    """The consecutive samples of each batch of one shard of a split."""
    num_batches = -(-num_samples // batch_size)
    mine = split_evenly(range(num_batches), num_shards)[shard]
    return [range(b * batch_size, min((b + 1) * batch_size, num_samples)) for b in mine]


def eval_batches(
    workload: Workload[Any],
    dataset: Dataset,
    ranges: list[range],
    config: TrainConfig,
    device: torch.device,
) -> Iterator[Batch]:
    """The batches of the given samples, not augmented, on the device."""
    for samples in ranges:
        # A model that draws random numbers in evaluation draws the same on any number of workers.
        seed_generators(derive_seed(config.seed, EVALUATE, samples.start))
        indices = np.arange(samples.start, samples.stop)
        batch = prepare(workload, fetch(dataset, indices), None, indices)
        yield to_device(batch, device, channels_last=config.channels_last)


def split_metrics(workload: Workload[Any]) -> dict[str, Metric]:
    """New metrics of a split: the mean loss, and the workload's own."""
    own = dict(workload.metrics())
    if LOSS in own:
        raise WorkloadError(
            "evertrain measures `loss` itself: give the workload's metric another name"
        )
    for name, metric in own.items():
        _check_mergeable(name, metric)
        # A workload may give the same ones again, with what they have counted.
        own[name] = metric.clone()
        own[name].reset()
    metrics = {LOSS: MeanMetric(nan_strategy="disable").set_dtype(torch.float64), **own}
    for metric in metrics.values():
        # The shards are merged here; torchmetrics would add up the ranks' sums once more.
        metric.distributed_available_fn = _never
    return metrics


def check_monitor(workload: Workload[Any], config: TrainConfig, *, is_new: bool = True) -> None:
    """Raise ConfigError if a validation does not measure what ranks the checkpoints.

    And if it ranks those of a new run the wrong way round.
    """
    monitor = config.monitor
    metrics = {full_name(VALIDATION, name): one for name, one in split_metrics(workload).items()}
    if monitor not in metrics:
        raise ConfigError(
            f"monitor {monitor!r} is not measured: {type(workload).__name__} gives "
            f"{', '.join(metrics)}. Name one of them, by monitor and monitor_order here or as "
            "attributes of the workload"
        )
    if is_new:
        check_order(monitor, metrics[monitor], config.order, "monitor_order")


def check_order(name: str, metric: Metric, order: Order, parameter: str) -> None:
    """Raise ConfigError if the metric says that it is better the other way round.

    `parameter` names the order's own. Those of torchmetrics have `higher_is_better`, and one that a
    user writes may; None says nothing.
    """
    if metric.higher_is_better is None or metric.higher_is_better == (order == "max"):
        return
    other = "min" if order == "max" else "max"
    raise ConfigError(
        f"{name} is better the {'lower' if order == 'max' else 'higher'} it is, as "
        f"{type(metric).__name__}.higher_is_better says, and {parameter} is {order}, which would "
        f"choose the worst: give {parameter}={other} (--{parameter.replace('_', '-')} {other}; of "
        "a run that exists, to evertrain retrain --run NAME)"
    )


def _check_mergeable(name: str, metric: Metric) -> None:
    """Raise WorkloadError for a metric whose states of several shards cannot be merged."""
    if not isinstance(metric, Metric):
        raise WorkloadError(
            f"metric {name!r} is a {type(metric).__name__}: `metrics` gives torchmetrics.Metric"
        )
    if any(isinstance(child, Metric) for child in metric.modules() if child is not metric):
        raise WorkloadError(
            f"metric {name!r} ({type(metric).__name__}) has another metric in it, whose states are "
            "not merged: give that one by a name of its own"
        )
    if not metric._defaults:  # noqa: SLF001 (nothing public names the states)
        raise WorkloadError(
            f"metric {name!r} ({type(metric).__name__}) has no state: what `update` counts is "
            "lost when shards are merged. Name it in the constructor: "
            'self.add_state("total", default=torch.tensor(0.0), dist_reduce_fx="sum")'
        )
    if _merges_itself(metric):
        return
    for state, default in metric._defaults.items():  # noqa: SLF001 (as above)
        reduction = metric._reductions[state]  # noqa: SLF001 (as above)
        if isinstance(default, list) and reduction not in (None, dim_zero_cat):
            raise WorkloadError(
                f"metric {name!r} ({type(metric).__name__}) cannot be merged from several shards: "
                f"its state {state!r} is a list, and its dist_reduce_fx is another one than 'cat': "
                "name that, and compute from all values"
            )


def _merges_itself(metric: Metric) -> bool:
    return type(metric).merge_state is not Metric.merge_state


def _outside_of_states(metric: Metric) -> dict[str, object]:
    """The attributes of a user's own metric that are none of its states, comparable."""
    if type(metric).__module__.partition(".")[0] in ("torchmetrics", "train_core"):
        return {}
    return {
        name: _comparable(value)
        for name, value in vars(metric).items()
        if name not in metric._defaults and name not in _OF_ANY_METRIC  # noqa: SLF001 (as above)
    }


def _comparable(value: object) -> object:
    """What is another one if the value has changed."""
    if isinstance(value, Tensor):
        return id(value), value._version  # noqa: SLF001 (nothing public counts)
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(key, _comparable(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [_comparable(item) for item in value]
    return repr(value)


def add_loss(metric: Metric, workload: Workload[Any], loss: Tensor, batch: Batch) -> None:
    """Add the mean loss of a batch to the metric LOSS of `split_metrics`."""
    # torchmetrics takes no weight into account where it does not look for NaN.
    if not weighs(workload):
        metric.update(loss.double().expand(len(next(iter(batch.values())))))
    elif weight := weight_of(workload, batch):
        assert isinstance(metric, MeanMetric)
        metric.mean_value = metric.mean_value.add(loss.double() * weight)
        metric.weight = metric.weight.add(weight)


def measure_shard(
    workload: Workload[Any],
    model: nn.Module,
    dataset: Dataset,
    config: TrainConfig,
    shard: int,
    device: torch.device,
    metrics: Mapping[str, Metric] | None = None,
    on_batch: Callable[[], None] | None = None,
) -> MetricStates:
    """The states of the metrics over one shard of a split. Leaves every module in its mode.

    `on_batch` is called before each batch is measured.
    """
    metrics = {
        name: metric.to(device) for name, metric in (metrics or split_metrics(workload)).items()
    }
    ranges = batches_of_shard(len(dataset), config.eval_batch_size, config.shards, shard)
    outside = {name: _outside_of_states(metric) for name, metric in metrics.items()}
    are_predicted = not OF_PREDICTIONS.isdisjoint(metrics)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            batches = eval_batches(workload, dataset, ranges, config, device)
            for samples, batch in zip(ranges, batches, strict=True):
                if on_batch:
                    on_batch()
                outputs, loss = forward(workload, model, batch, config)
                with autocast(device, config):
                    predicted = predictions_of(workload, outputs) if are_predicted else {}
                for name, metric in metrics.items():
                    if name == LOSS:
                        add_loss(metric, workload, loss, batch)
                    elif name in OF_PREDICTIONS:
                        update_prediction_metric(name, metric, samples, predicted, batch)
                    else:
                        update_metric(workload, name, metric, outputs, batch)
    finally:
        set_modes(modes)
    for name, metric in metrics.items():
        now = _outside_of_states(metric)
        if lost := [one for one in now if outside[name].get(one) != now[one]]:
            raise WorkloadError(
                f"metric {name!r} ({type(metric).__name__}) keeps {few_of(lost)} outside of its "
                "states: what `update` changes there is lost when shards are merged. Make it a "
                "state, by `add_state` in the constructor"
            )
    return {name: state_of(metric) if ranges else {} for name, metric in metrics.items()}


def set_modes(modes: Mapping[nn.Module, bool]) -> None:
    """Set each module, and none of those in it, to training (True) or evaluation."""
    for module, training in modes.items():
        module.training = training


def merge(metrics: Mapping[str, Metric], shards: list[MetricStates]) -> dict[str, float]:
    """The metrics' values over all shards, merged in their order."""
    values: dict[str, float] = {}
    for name, metric in metrics.items():
        merged = merge_states(metric, [states[name] for states in shards])
        with warnings.catch_warnings():
            # torchmetrics does not count a merged state as an update.
            warnings.filterwarnings("ignore", message=".*compute.* before the .*update")
            value = merged.compute()
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise WorkloadError(
                f"metric {name!r} gives a {type(value).__name__}"
                f"{tuple(value.shape) if isinstance(value, Tensor) else ''}: a metric is one number"
            )
        values[name] = float(value)
    return values


def merge_states(metric: Metric, states: list[dict[str, Any]]) -> Metric:
    """A metric with the states of shards merged in their order; a shard without rows has none.

    Each state is reduced over all shards at once, as torchmetrics does it over the ranks of a
    process group. torchmetrics' own `merge_state` is not used: with it a state that is reduced by
    its mean becomes NaN, and the lists of later shards come first.
    """
    metric = metric.to("cpu")
    metric.reset()
    there = [state for state in states if state]
    if _merges_itself(metric):
        for state in there:
            metric.merge_state(state)
        return metric
    for name, reduction in metric._reductions.items():  # noqa: SLF001 (nothing public names them)
        setattr(metric, name, _reduced(reduction, [state[name] for state in there]))
    return metric


def _reduced(reduction: Any, values: list[Any]) -> Any:
    """One state, reduced over the shards; a single shard's state stays as it is."""
    if any(isinstance(value, list) for value in values):
        lists = [value if isinstance(value, list) else [value] for value in values]
        return [item for of_shard in lists for item in of_shard]
    if len(values) == 1:
        return values[0]
    if reduction is dim_zero_sum:
        # In the order of the shards, however many there are.
        return reduce(torch.add, values)
    if reduction is dim_zero_cat:
        return torch.cat([value[None] if value.ndim == 0 else value for value in values])
    stacked = torch.stack(values)
    return stacked if reduction is None else reduction(stacked)


def check_split(dataset: Dataset | Stream, split: str) -> int:
    """The number of samples. Raises DataError if there are none."""
    if len(dataset) == 0:
        raise DataError(
            f"the {split} split is empty: `dataset` gives it no samples, perhaps by its settings"
        )
    return len(dataset)


def _never() -> bool:
    return False


def state_of(metric: Metric) -> dict[str, Any]:
    """The metric's state, on the CPU."""

    def to_cpu(state: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach().cpu()
        if isinstance(value, (list, tuple)):
            return [to_cpu(state, item) for item in value]
        raise WorkloadError(
            f"the state {state!r} of metric {type(metric).__name__} holds a "
            f"{type(value).__name__}: states are tensors, and lists of tensors"
        )

    names = metric._defaults  # noqa: SLF001 (nothing public names them)
    return {name: to_cpu(name, getattr(metric, name)) for name in names}
