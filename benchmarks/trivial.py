"""The trivial training of Ray Train's guide to checkpoints: a linear model on random numbers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import MeanSquaredError, Metric

from train_core import ArrayDataset, Batch, Columns, SampleRandom, Settings, Split, Workload

NUM_SAMPLES = 100


class TrivialSettings(Settings):
    """Where each process notes when it began a batch; empty: nowhere."""

    notes: str = ""


class Trivial(Workload[TrivialSettings]):
    """100 samples of 4 numbers, one step an epoch."""

    Settings = TrivialSettings
    settings: TrivialSettings
    target_columns = ("y",)

    def model(self) -> nn.Module:
        """Y = w x + b."""
        return nn.Linear(4, 1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam, as the guide has it."""
        return torch.optim.Adam(model.parameters(), lr=3e-4)

    def dataset(self, split: Split) -> ArrayDataset:
        """Random numbers."""
        rng = np.random.default_rng(["train", "validation", "test"].index(split))
        return ArrayDataset(
            x=rng.normal(0, 1, (NUM_SAMPLES, 4)).astype(np.float32),
            y=rng.uniform(0, 1, (NUM_SAMPLES, 1)).astype(np.float32),
        )

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """The numbers as they are."""
        batch = {"inputs": torch.from_numpy(columns["x"])}
        if "y" in columns:
            batch["targets"] = torch.from_numpy(columns["y"])
        return batch

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """Note the time, and compute."""
        if self.settings.notes:
            with Path(self.settings.notes, str(os.getpid())).open("a") as notes:
                notes.write(f"{time.time()}\n")
        return super().forward(model, batch)

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The mean squared error."""
        return nn.functional.mse_loss(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        """The mean squared error, once more."""
        return {"mse": MeanSquaredError()}

    def predictions(self, outputs: Any) -> Mapping[str, Tensor]:
        """The number itself."""
        return {"prediction": outputs[:, 0]}
