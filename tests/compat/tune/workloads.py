"""A workload whose searches tests can follow: a trial's metric is what its settings say."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchmetrics
from torch import Tensor, nn
from torchmetrics import Metric

from train_core import ArrayDataset, Batch, Columns, SampleRandom, Settings, Split, Workload
from train_core.datasets.protocols import Dataset, Stream


class SearchedSettings(Settings):
    learning_rate: float = 0.01
    score: float = 0
    """The metric: who has more of it is better."""
    pause_s: float = 0
    """Before each step."""
    gate: str = ""
    """A file: while it says `closed`, no batch comes, also of a validation."""


class Searched(Workload[SearchedSettings]):
    """A linear model, four steps an epoch; at a rate of 0 its weights stay and its moments move."""

    Settings = SearchedSettings
    monitor = "validation/score"

    def model(self) -> nn.Module:
        return nn.Linear(4, 2)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), self.settings.learning_rate, weight_decay=0)

    def dataset(self, split: Split) -> Dataset | Stream:
        rng = np.random.Generator(np.random.Philox(["train", "validation", "test"].index(split)))
        x = rng.standard_normal((16, 4)).astype(np.float32)
        return ArrayDataset(x=x, label=(x[:, 0] > 0).astype(np.int64))

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        while (gate := Path(self.settings.gate)).is_file() and gate.read_text() == "closed":
            time.sleep(0.05)
        batch = {"inputs": torch.from_numpy(np.ascontiguousarray(columns["x"], np.float32))}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(np.ascontiguousarray(columns["label"]))
        return batch

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        time.sleep(self.settings.pause_s)
        return nn.functional.cross_entropy(outputs, batch["targets"])

    def metrics(self) -> dict[str, Metric]:
        return {"score": torchmetrics.MeanMetric()}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        metric.update(torch.full((len(outputs),), self.settings.score))

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        return {"prediction": outputs.argmax(1)}
