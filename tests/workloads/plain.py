"""Training and measuring in plain torch: a workload keeps its promises without an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from train_core.config import TrainConfig
from train_core.datasets.protocols import Split, fetch
from train_core.tools.plain_training import PlainTraining
from train_core.workload import Workload


def train_plainly(
    workload: Workload[Any], *, epochs: int, batch_size: int, seed: int = 0
) -> nn.Module:
    """The model after so many epochs, as evertrain's loop would call the workload."""
    config = TrainConfig(epochs=epochs, batch_size=batch_size, seed=seed)
    training = PlainTraining(workload, config, workload.dataset("train"))
    for step in range(training.total_steps):
        training.step(step)
    return training.model


@torch.no_grad()
def measure(workload: Workload[Any], model: nn.Module, split: Split) -> dict[str, float]:
    """The workload's own metrics of a split."""
    model.eval()
    dataset = workload.dataset(split)
    metrics = workload.metrics()
    for start in range(0, len(dataset), 256):
        indices = np.arange(start, min(start + 256, len(dataset)))
        batch = workload.prepare(fetch(dataset, indices), None)
        outputs = workload.forward(model, batch)
        for name, metric in metrics.items():
            workload.update_metric(metric, outputs, batch, name)
    return {name: float(metric.compute()) for name, metric in metrics.items()}
