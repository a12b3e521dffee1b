"""Whether each metric is merged rightly over shards, and does not depend on the batches."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset
from train_core.errors import EvertrainError
from train_core.policy.metric_names import LOSS
from train_core.quick_metrics import Metric
from train_core.rank.metrics.evaluation_loop import measure_shard, merge, split_metrics
from train_core.rank.metrics.forward import forward
from train_core.rehearsal.few_rows import (
    batch_of,
    device_of,
    is_close,
    raised,
    tolerance_of,
    with_other_weights,
)
from train_core.results import Finding
from train_core.workload import (
    Workload,
    update_metric,
)

_log = logging.getLogger(__name__)


def try_metrics(
    workload: Workload[Any],
    model: nn.Module,
    rows: Dataset,
    config: TrainConfig,
    *,
    compares_batches: bool = True,
) -> Iterator[Finding]:
    """Whether each metric is merged rightly over shards, and does not depend on the batches.

    `compares_batches` is false if the model's outputs depend on them.

    Raises WorkloadError for a metric that cannot be merged at all.
    """
    names = [name for name in split_metrics(workload) if name != LOSS]

    def measured(batch_size: int, num_shards: int) -> dict[str, float | str]:
        cut = config.model_copy(update={"eval_batch_size": batch_size, "num_shards": num_shards})
        return _values(workload, model, rows, cut)

    # The last batch has fewer rows.
    some = max(1, 2 * len(rows) // 5)
    # Some metrics can merge two, and no more.
    num_shards = min(max(2, config.shards), 3)
    on_one, on_several = measured(some, 1), measured(some, num_shards)
    whole = measured(len(rows), 1)
    try:
        single = measured(1, 1) if compares_batches else whole
    except EvertrainError:
        raise
    except Exception as error:  # noqa: BLE001 (of a user's code)
        single = whole
        yield Finding(
            name="metric",
            is_refused=False,
            message=f"a row alone cannot be evaluated: {raised(error)}. The last batch of a split "
            "may have one row: keep the first dimension, as by squeeze(1)",
        )
    other_whole, other_cut = whole, whole
    # A model that has learnt nothing may give about the same for every row. Such weights may be
    # none that it can have.
    with suppress(Exception), with_other_weights(model):
        other_whole, other_cut = measured(len(rows), 1), measured(some, 1)
    tolerance = tolerance_of(config)
    for name in names:
        kind = type(split_metrics(workload)[name]).__name__
        if isinstance(on_one[name], str):
            # It needs more rows, or others, and may be right.
            continue
        if not is_close(on_one[name], on_several[name], tolerance):
            yield Finding(
                name="metric",
                is_refused=True,
                message=f"metric {name!r} ({kind}) is {_shown(on_one[name])} of {len(rows)} rows "
                f"on one shard and {_shown(on_several[name])} on {num_shards}: its states are not "
                "merged rightly. Keep sums and counts in them (dist_reduce_fx='sum'), or all "
                "values (dist_reduce_fx='cat'), and compute from those",
            )
            continue
        if applied := _given_logits(workload, model, rows, config, name):
            yield Finding(
                name="metric",
                is_refused=False,
                message=f"metric {name!r} ({kind}) is given values outside of 0 to 1, and "
                f"torchmetrics applies a {applied} to a batch only if it contains one, so it "
                "depends on eval_batch_size: give probabilities in update_metric, by "
                f"outputs.{applied}(…)",
            )
            continue
        if not compares_batches:
            continue
        for of_whole, value, how in (
            (whole[name], single[name], "one by one"),
            (whole[name], on_one[name], f"in batches of {some}"),
            (other_whole[name], other_cut[name], f"in batches of {some}, with other weights"),
        ):
            if not is_close(of_whole, value, tolerance):
                yield Finding(
                    name="metric",
                    is_refused=False,
                    message=f"metric {name!r} ({kind}) is {_shown(of_whole)} of {len(rows)} "
                    f"rows in one batch and {_shown(value)} {how}, so it depends on "
                    "eval_batch_size: only sums over its rows, or all their values, may be in its "
                    "states",
                )
                break


def _given_logits(
    workload: Workload[Any], model: nn.Module, rows: Dataset, config: TrainConfig, name: str
) -> str:
    """What the metric applies by what a batch contains, if it is given no probabilities."""
    metric = split_metrics(workload)[name]
    applied = _applied_by(metric)
    if not applied:
        return ""
    given: list[Any] = []
    # torchmetrics itself puts the method that it calls there.
    metric.__dict__["update"] = lambda *values, **_: given.extend(values)
    try:
        with with_other_weights(model):
            batch = batch_of(workload, model, rows, config)
            outputs, _ = forward(workload, model, dict(batch), config)
            update_metric(workload, name, metric, outputs, batch)
    except Exception as error:  # noqa: BLE001 (of a user's code)
        # Such weights may be none that the model can have.
        _log.debug("metric %r cannot be tried with other weights: %s", name, error)
        return ""
    if not given or not isinstance(given[0], Tensor) or not given[0].is_floating_point():
        return ""
    low, high = torch.aminmax(given[0])
    return applied if low < 0 or high > 1 else ""


def _applied_by(metric: Metric) -> str:
    """What torchmetrics' code of the metric applies to a batch that holds no probabilities."""
    names = [c.__name__ for c in type(metric).__mro__ if c.__module__.startswith("torchmetrics.")]
    if any(name.startswith(("Binary", "Multilabel")) for name in names):
        return "sigmoid"
    # The others of several classes look at the largest value only.
    by_softmax = {"MulticlassPrecisionRecallCurve", "MulticlassCalibrationError"}
    return "softmax" if by_softmax.intersection(names) else ""


def _values(
    workload: Workload[Any], model: nn.Module, rows: Dataset, config: TrainConfig
) -> dict[str, float | str]:
    """Each metric's value; of one that cannot be computed, what it says."""
    found: dict[str, float | str] = {}
    with warnings.catch_warnings():
        # Of few rows torchmetrics warns that a class is missing.
        warnings.simplefilter("ignore")
        shards = [
            measure_shard(workload, model, rows, config, shard, device_of(model))
            for shard in range(config.num_shards)
        ]
        for name, metric in split_metrics(workload).items():
            states = [{name: of_shard[name]} for of_shard in shards]
            try:
                found |= merge({name: metric}, states)
            except EvertrainError:
                raise
            except Exception as error:  # noqa: BLE001 (torchmetrics raises any)
                found[name] = f"{type(error).__name__}: {error}"
    return found


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
