"""Training and measuring in plain torch: a workload keeps its promises without an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from train_core.datasets.protocols import Split, fetch
from train_core.policy.samples.randomness import SampleRandom
from train_core.policy.samples.sample_order import order_generator
from train_core.workload import Workload


def train_plainly(
    workload: Workload[Any], *, epochs: int, batch_size: int, seed: int = 0
) -> nn.Module:
    """The model after so many epochs, as evertrain's loop would call the workload."""
    torch.manual_seed(seed)
    model = workload.model().train()
    optimizer = workload.optimizer(model)
    train = workload.dataset("train")
    starts = range(0, len(train), batch_size)
    schedule = workload.schedule(optimizer, epochs * len(starts))
    step = 0
    for epoch in range(epochs):
        order = order_generator(seed, epoch).permutation(len(train))
        for start in starts:
            indices = order[start : start + batch_size]
            batch = workload.prepare(fetch(train, indices), SampleRandom(seed, epoch, indices))
            optimizer.zero_grad()
            workload.loss(workload.forward(model, batch), batch).backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            step += 1
            workload.after_step(model, step)
    return model


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
