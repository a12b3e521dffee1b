"""Outputs and loss of a batch, as a training step and an evaluation compute them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from train_core.config import TrainConfig
from train_core.workload import Batch, Workload


def forward(
    workload: Workload[Any], model: nn.Module, batch: Batch, config: TrainConfig
) -> tuple[Any, Tensor]:
    """The model's outputs and the mean loss, under autocast if the configuration says bf16."""
    with autocast(next(iter(batch.values())).device, config):
        outputs = workload.forward(model, batch)
        return outputs, workload.loss(outputs, batch)


def nothing_of(outputs: Any) -> Tensor:
    """A loss of 0, whose gradients are zeros."""
    tensors = [one for one in tree_leaves(outputs) if isinstance(one, Tensor) and one.requires_grad]
    return sum((one.sum() * 0 for one in tensors), torch.zeros(()))


def autocast(device: torch.device, config: TrainConfig) -> torch.autocast:
    """The precision in which outputs and loss are computed."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
