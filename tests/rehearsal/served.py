"""Workloads whose predictions would be other ones where they are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torchmetrics
from torch import Tensor, nn

from tests.rehearsal.odd import Right
from train_core import ArrayDataset, Batch, Columns, Dataset, Split, Stream
from train_core.policy.samples.randomness import SampleRandom


class Fits(Right):
    """What it needs of its data it fits: it is served as it was trained."""

    def fit(self, train: Dataset | Stream) -> Any:
        assert isinstance(train, ArrayDataset)
        return {"mean": train.columns["x"].mean(0)}

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        x = (columns["x"] - self.fitted["mean"]).astype(np.float32)
        return super().prepare({**columns, "x": x}, random)


class ReadsFiles(Right):
    """Reads a file of its training for each batch."""

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        self.files("words")
        return super().prepare(columns, random)

    def sources(self) -> dict[str, str]:
        return {"words": __file__}


class ModelReadsFiles(ReadsFiles):
    """Reads a file of its training for its model."""

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        return Right.prepare(self, columns, random)

    def model(self) -> nn.Module:
        self.files("words")
        return super().model()


class KeptByDataset(Right):
    """What `dataset` found in the training data is no part of the model."""

    scale = 1.0

    def dataset(self, split: Split) -> ArrayDataset:
        found = super().dataset(split)
        self.scale = float(found.columns["x"].std()) * 3
        return found

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        x = (columns["x"] * self.scale).astype(np.float32)
        return super().prepare({**columns, "x": x}, random)


class NeededOfDataset(KeptByDataset):
    """The same, and nothing is there before."""

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        x = (columns["x"] * vars(self)["scale"]).astype(np.float32)
        return Right.prepare(self, {**columns, "x": x}, random)


class KeptByTraining(Right):
    """What training found is no part of the model."""

    shift = 0.0

    def after_step(self, model: nn.Module, step: int) -> None:
        self.shift += 1.0

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"score": (outputs[:, 0] + self.shift).sigmoid()}


class Draws(Right):
    """Its predictions are drawn, and an evaluation seeds them."""

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs: Tensor = model(batch["inputs"])
        return outputs + torch.randn_like(outputs)


class FittedMetric(Fits):
    """What it measures depends on what it fitted."""

    def metrics(self) -> Mapping[str, torchmetrics.Metric]:
        assert self.fitted is not None
        return super().metrics()
