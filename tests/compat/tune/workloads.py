"""A workload whose searches tests can follow: a trial's metric is what its settings say."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from torch import Tensor
from torchmetrics import Metric

from tests.rank.tiny import Linear, TinySettings
from train_core import Batch, Columns, SampleRandom


class SearchedSettings(TinySettings):
    num_train: int = 16
    num_validation: int = 16
    one_cycle: bool = False
    averages: bool = False
    score: float = 0
    """The metric: who has more of it is better."""
    pause_s: float = 0
    """Before each step."""
    gate: str = ""
    """A file: while it says `closed`, no batch comes, also of a validation."""


class Searched(Linear):
    """A linear model, four steps an epoch; at a rate of 0 its weights stay and its moments move."""

    Settings = SearchedSettings
    settings: SearchedSettings
    monitor = "validation/score"

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        while (gate := Path(self.settings.gate)).is_file() and gate.read_text() == "closed":
            time.sleep(0.05)
        return super().prepare(columns, random)

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        time.sleep(self.settings.pause_s)
        return super().loss(outputs, batch)

    def metrics(self) -> dict[str, Metric]:
        return {"score": torchmetrics.MeanMetric()}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        metric.update(torch.full((len(outputs),), self.settings.score))
