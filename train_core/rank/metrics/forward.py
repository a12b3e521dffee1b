"""Outputs, loss and predictions of a batch, in the precision of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from train_core.config import TrainConfig
from train_core.errors import WorkloadError
from train_core.workload import Batch, Workload

RESERVED = ("id", "model_step")
"""Columns of predictions that evertrain itself gives."""


def forward(
    workload: Workload[Any], model: nn.Module, batch: Batch, config: TrainConfig
) -> tuple[Any, Tensor]:
    """The model's outputs and the mean loss, under autocast if the configuration says bf16."""
    with autocast(next(iter(batch.values())).device, config):
        outputs = workload.forward(model, batch)
        return outputs, workload.loss(outputs, batch)


def predict(
    workload: Workload[Any], model: nn.Module, batch: Batch, config: TrainConfig
) -> Mapping[str, Tensor]:
    """What the workload predicts for the rows of a batch, in the same precision."""
    with autocast(next(iter(batch.values())).device, config):
        return predictions_of(workload, workload.forward(model, batch))


def predictions_of(workload: Workload[Any], outputs: Any) -> Mapping[str, Tensor]:
    """What the workload predicts, as columns.

    Raises WorkloadError for what is no columns by name, for a name that is taken, and for a
    classifier without `prediction`.
    """
    columns = workload.predictions(outputs)
    if not isinstance(columns, Mapping) or not columns:
        raise WorkloadError(
            f"predictions() gives {columns!r:.80}: give columns by their names, and `prediction` "
            "first of all"
        )
    if taken := [name for name in RESERVED if name in columns]:
        raise WorkloadError(
            f"predictions() has a column {taken[0]!r}, which files of predictions have already: "
            "give it another name"
        )
    if workload.class_names and "prediction" not in columns:
        raise WorkloadError(
            f"predictions() of a classifier, which has class_names, gives {', '.join(columns)}: "
            "give the class of each sample as `prediction`, by which it is evaluated"
        )
    return columns


def nothing_of(outputs: Any) -> Tensor:
    """A loss of 0, whose gradients are zeros. Raises WorkloadError for outputs without a tensor."""
    tensors = [one for one in tree_leaves(outputs) if isinstance(one, Tensor) and one.requires_grad]
    if not tensors:
        raise WorkloadError(
            f"weight() is 0 for a batch, and its outputs, a {type(outputs).__name__}, have no "
            "tensors that are found: give forward() outputs that are tensors, lists or dicts"
        )
    # Of no values: of -inf, which masks, zero times as much is NaN.
    return torch.stack([one.flatten()[:0].sum() for one in tensors]).sum()


def autocast(device: torch.device, config: TrainConfig) -> AbstractContextManager[Any]:
    """The precision in which outputs and loss are computed."""
    is_bf16 = config.precision == "bf16"
    # A context that changes nothing takes time in each pass.
    if is_bf16 or torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, torch.bfloat16, enabled=is_bf16)
    return nullcontext()
