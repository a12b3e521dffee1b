"""Whether an evaluation, the loss and predictions of a few rows are what a run takes them for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from train_core.config import TrainConfig
from train_core.datasets.few_samples import FewSamples
from train_core.datasets.protocols import Dataset, fetch
from train_core.errors import WorkloadError
from train_core.policy.samples.randomness import EVALUATE, derive_seed
from train_core.rank.checkpoint.packing import first_difference
from train_core.rank.checkpoint.reader import ModelState
from train_core.rank.checkpoint.state import (
    load_model_state,
    load_unsaved_buffers,
    model_state,
    unsaved_buffers,
)
from train_core.rank.data.batches import prepare, to_device
from train_core.rank.metrics.forward import autocast, forward, predict
from train_core.rank.metrics.scores import prediction_metrics, update_prediction_metric
from train_core.rehearsal.few_rows import (
    TOLERANCES,
    batch_of,
    device_of,
    is_close,
    raised,
    tolerance_of,
    with_other_weights,
)
from train_core.results import Finding
from train_core.text.shown_text import few_of
from train_core.workload import (
    Batch,
    Workload,
    predicts,
    seed_generators,
    weighs,
    weight_of,
)


def try_evaluation(
    workload: Workload[Any], model: nn.Module, rows: Dataset, config: TrainConfig
) -> Iterator[Finding]:
    """Whether an evaluation leaves the model as it was; puts back what it has changed."""
    saved = {name: _copied(value) for name, value in model_state(model).items()}
    unsaved = {name: _copied(value) for name, value in unsaved_buffers(model).items()}
    forward(workload, model, batch_of(workload, model, rows, config), config)
    changed = [
        name
        for name, value in model_state(model).items()
        if name not in saved or first_difference({"": saved[name]}, {"": value})
    ]
    # A cache that grows with the longest row may stay.
    changed += [
        name
        for name, value in unsaved_buffers(model).items()
        if name in unsaved
        and value.shape == unsaved[name].shape
        and first_difference({"": unsaved[name]}, {"": value})
    ]
    if changed:
        yield Finding(
            name="state",
            is_refused=True,
            message=f"an evaluation changes {few_of(changed)}, and each worker validates other "
            "rows: what is trained would depend on the number of workers, and on where a "
            "validation was interrupted. Change it in training only: if self.training",
        )
        load_model_state(model, saved)
        load_unsaved_buffers(model, unsaved)


def try_loss(
    workload: Workload[Any], model: nn.Module, rows: Dataset, config: TrainConfig
) -> Iterator[Finding]:
    """Whether the loss of a batch is the mean of the losses of its parts."""
    if len(rows) == 1:
        return
    whole, of_parts = _cut_loss(workload, model, rows, config)
    if _is_mean(whole, of_parts, config):
        # A model that has learnt nothing may have about the same loss for every row.
        with with_other_weights(model), suppress(Exception):
            # Such weights may be none that the model can have.
            whole, of_parts = _cut_loss(workload, model, rows, config)
    if not _is_mean(whole, of_parts, config):
        yield Finding(
            name="loss",
            is_refused=False,
            message=f"the loss of {len(rows)} rows is {whole:.6g}, and the mean of the losses of "
            f"its two parts {of_parts:.6g}: it is no mean over {_counted(workload)}, so that "
            "num_shards and accumulation_steps are part of what is trained. If it is a mean over "
            "something else, as tokens, let weight() count that; of a loss between the samples of "
            "a batch, train on one shard (num_shards 1), or keep the number of shards",
        )


def _is_mean(whole: float, of_parts: float, config: TrainConfig) -> bool:
    return is_close(whole, of_parts, tolerance_of(config))


def _cut_loss(
    workload: Workload[Any], model: nn.Module, rows: Dataset, config: TrainConfig
) -> tuple[float, float]:
    """The loss of all rows, and the mean of those of two unequal parts, each by its weight."""
    num_rows = len(rows)
    batch = batch_of(workload, model, rows, config)
    outputs, loss = forward(workload, model, dict(batch), config)
    # What has another length of fewer rows is of the rows.
    fewer = FewSamples(rows, np.arange(num_rows - 1))
    batch_of_fewer = batch_of(workload, model, fewer, config)
    outputs_of_fewer, _ = forward(workload, model, dict(batch_of_fewer), config)
    total = weight = 0.0
    first = max(1, num_rows // 3)
    for part in (slice(0, first), slice(first, num_rows)):
        with autocast(device_of(model), config):
            rows_of_part = _cut(batch, part, batch_of_fewer)
            of_part = workload.loss(_cut(outputs, part, outputs_of_fewer), rows_of_part)
        num_of_part = part.stop - part.start
        if of_rows := weight_of(workload, rows_of_part) if weighs(workload) else num_of_part:
            total += float(of_part) * of_rows
            weight += of_rows
    return float(loss), total / (weight or 1)


def _counted(workload: Workload[Any]) -> str:
    return "what weight() counts" if weighs(workload) else "samples"


def _cut(value: Any, part: slice, of_fewer: Any) -> Any:
    """The value with that part of each tensor that has other lengths in `of_fewer`."""

    def cut(one: Any, other: Any) -> Any:
        is_of_rows = isinstance(one, Tensor) and one.ndim and len(one) != len(other)
        return one[part] if is_of_rows else one

    return tree_map(cut, value, of_fewer)


def try_predictions(
    workload: Workload[Any], model: nn.Module, rows: Dataset, config: TrainConfig
) -> Iterator[Finding]:
    """Whether predictions need no targets, and are finite values for each row."""
    if not predicts(workload):
        yield _of_predictions(
            "predictions() is not written: no batch is inferred, and evaluations have metrics only"
        )
        return
    try:
        together = _predicted(workload, model, rows, config)
    except WorkloadError as error:
        yield _of_predictions(str(error))
        return
    except Exception as error:  # noqa: BLE001 (of a user's code)
        targets = ", ".join(workload.target_columns) or "none"
        yield _of_predictions(
            f"predictions cannot be made of rows without their targets ({targets}): "
            f"{type(error).__name__}: {error}. prepare() gets no such column in inference"
        )
        return
    if odd := [name for name, column in together.items() if not _is_column(column)]:
        yield _of_predictions(
            f"{few_of(odd)} of predictions() is no tensor of a value for each sample"
        )
        return
    if wrong := [name for name, column in together.items() if len(column) != len(rows)]:
        lengths = ", ".join(str(len(together[name])) for name in wrong)
        yield _of_predictions(
            f"{few_of(wrong)} of predictions() has {lengths} rows of {len(rows)} samples: give a "
            "value, or a row of values, for each"
        )
        return
    for name, column in together.items():
        if column.is_floating_point() and not bool(torch.isfinite(column).all()):
            yield _of_predictions(f"predictions() gives values of {name!r} that are not finite")
            return
    yield from _try_targets(workload, model, rows, config, together)


def _try_targets(
    workload: Workload[Any],
    model: nn.Module,
    rows: Dataset,
    config: TrainConfig,
    without: dict[str, Tensor],
) -> Iterator[Finding]:
    """Whether the model predicts the same with the targets, which an evaluation gives it."""
    try:
        beside = _predicted(workload, model, rows, config, with_targets=True)
    except Exception:  # noqa: BLE001 (of a user's code: an evaluation tells it)
        return
    leaking = [n for n, one in beside.items() if n in without and not _are_close(one, without[n])]
    if leaking:
        yield _of_predictions(
            f"{few_of(leaking)} of a row with its targets "
            f"({', '.join(workload.target_columns)}) is not that of the row without them: the "
            "model is given a target by prepare() or forward(), so validations measure what no "
            "batch inference can reach. If it is to be given them, as by teacher forcing, let "
            "predictions be made without"
        )


def try_scores(
    workload: Workload[Any], model: nn.Module, rows: Dataset, config: TrainConfig
) -> Iterator[Finding]:
    """Whether an evaluation can compare the predictions with the targets."""
    batch = batch_of(workload, model, rows, config)
    try:
        predicted = predict(workload, model, dict(batch), config)
        for name, metric in prediction_metrics(workload, len(rows)).items():
            metric.to(device_of(model))
            update_prediction_metric(name, metric, range(len(rows)), predicted, batch)
    except Exception as error:  # noqa: BLE001 (of a user's code)
        yield _of_predictions(
            f"an evaluation cannot compare the predictions with the targets: {raised(error)}. With "
            f"{len(workload.class_names)} class_names, `prediction` and the batch's `targets` are "
            "numbers of classes; without any, no confusion matrix is made"
        )


def try_row_alone(
    workload: Workload[Any], model: nn.Module, rows: Dataset, config: TrainConfig
) -> Iterator[Finding]:
    """Whether predictions of a row are the same alone and in a batch."""
    together = _predicted(workload, model, rows, config)
    # The last one: what is drawn at random for it is another value alone.
    last = FewSamples(rows, np.array([len(rows) - 1]))
    try:
        alone = _predicted(workload, model, last, config)
    except Exception as error:  # noqa: BLE001 (of a user's code)
        yield _of_predictions(
            f"a row alone cannot be predicted: {raised(error)}. The last batch may have one row: "
            "keep the first dimension, as by squeeze(1), and what is computed of each row"
        )
        return
    # A class may change where two are as probable: the probabilities tell, if there are any.
    inexact = [name for name, column in together.items() if column.is_floating_point()]
    if short := [name for name in together if together[name][-1:].shape != alone[name].shape]:
        yield _of_predictions(
            f"{few_of(short)} of a row alone has another shape than in a batch: keep the first "
            "dimension, as by squeeze(1)"
        )
        return
    moved = [
        name for name in inexact or together if not _are_close(together[name][-1:], alone[name])
    ]
    if moved:
        yield _of_predictions(
            f"{few_of(moved)} of a row alone is not that of the same row in a batch: it depends on "
            "the rows beside it, or is drawn at random, and so predictions depend on "
            "eval_batch_size"
        )


def try_served(
    served: Workload[Any],
    workload: Workload[Any],
    model: nn.Module,
    rows: Dataset,
    config: TrainConfig,
) -> Iterator[Finding]:
    """Whether the model predicts the same where it is served: with its weights and what was fitted.

    `served` is the workload there, which has no file of its training and read no split.
    """
    try:
        predicted = _predicted(workload, model, rows, config)
    except Exception:  # noqa: BLE001 (of a user's code: `try_predictions` tells it)
        return
    weights = {name: _copied(value) for name, value in model_state(model).items()}
    buffers = {name: _copied(value) for name, value in unsaved_buffers(model).items()}
    try:
        there = served.model()
        ModelState(weights, buffers).give(there)
        found = _predicted(served, there.eval().to(device_of(model)), rows, config)
    except WorkloadError as error:
        yield _of_predictions(str(error), is_refused=True)
        return
    except Exception as error:  # noqa: BLE001 (of a user's code)
        yield _of_predictions(
            f"a served model cannot predict: {raised(error)}. It has the workload's settings, the "
            "weights and what fit() gave; dataset() was not called there"
        )
        return
    for name in (name for name in predicted if name in found):
        if not _are_close(predicted[name], found[name]):
            yield _of_predictions(
                f"{name!r} of the same rows is another one where the model is served. It has the "
                "workload's settings, the weights and what fit() gave: what else prepare(), "
                "forward() or the model read is lost. Keep it in buffers of the model, or return "
                "it from fit()",
                is_refused=True,
            )
            return


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)


def _predicted(
    workload: Workload[Any],
    model: nn.Module,
    rows: Dataset,
    config: TrainConfig,
    *,
    with_targets: bool = False,
) -> dict[str, Tensor]:
    """The predictions of rows, without their targets if nothing else is said."""
    indices = np.arange(len(rows))
    columns = fetch(rows, indices)
    left_out = () if with_targets else workload.target_columns
    given = {name: c for name, c in columns.items() if name not in left_out}
    batch: Batch = prepare(workload, given, None, indices)
    batch = to_device(batch, device_of(model), channels_last=config.channels_last)
    # A model may draw: the same each time, as in an evaluation.
    seed_generators(derive_seed(config.seed, EVALUATE, 0))
    return dict(predict(workload, model, batch, config))


def _is_column(column: Any) -> bool:
    return isinstance(column, Tensor) and column.ndim > 0


def _of_predictions(message: str, *, is_refused: bool = False) -> Finding:
    return Finding(name="predictions", is_refused=is_refused, message=message)


def _are_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    tolerance = TOLERANCES.get(one.dtype, 1e-3)
    scale = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
