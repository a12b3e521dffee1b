"""Stock Ray Train as its guide to checkpoints writes it, at Ray's defaults: the cold baseline."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np
import ray.train.torch
import torch
from ray import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.optim import Adam


def train_func(config: dict[str, Any]) -> None:
    """Five epochs of one step, each reported with a checkpoint."""
    n = 100
    X = torch.Tensor(np.random.normal(0, 1, size=(n, 4)))  # noqa: N806, NPY002 (as in the guide)
    Y = torch.Tensor(np.random.uniform(0, 1, size=(n, 1)))  # noqa: N806, NPY002 (as in the guide)
    model = ray.train.torch.prepare_model(nn.Linear(4, 1))
    criterion = nn.MSELoss()
    optimizer = Adam(model.parameters(), lr=3e-4)
    for _ in range(config["num_epochs"]):
        loss = criterion(model.forward(X), Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if train.get_context().get_world_rank() == 0:
                torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            train.report({"loss": loss.item()}, checkpoint=checkpoint)


if __name__ == "__main__":
    TorchTrainer(
        train_func,
        train_loop_config={"num_epochs": 5},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=sys.argv[1]),
    ).fit()
