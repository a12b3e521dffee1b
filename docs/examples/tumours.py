"""Is a tumour malignant? A table of 30 measurements, a small network, one file.

The data are those of scikit-learn's `load_breast_cancer`. Yours would come from a database or
from Parquet files: a column per measurement, all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from pydantic import Field
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassRecall

from train_core import ArrayDataset, Batch, Columns, SampleRandom, Settings, Split, Workload

MEASUREMENTS = tuple(map(str, load_breast_cancer().feature_names))


class TumourSettings(Settings):
    """What may be set from outside, with its limits."""

    learning_rate: float = Field(default=5e-3, gt=0, description="AdamW's learning rate.")
    hidden: int = Field(default=32, ge=1, description="Units of the hidden layer.")
    jitter: float = Field(
        default=0.02, ge=0, lt=1, description="Relative error that training adds to a measurement."
    )


class Tumours(Workload[TumourSettings]):
    """Malignant or benign, from a table with a column per measurement."""

    Settings = TumourSettings
    class_names = ("malignant", "benign")

    def dataset(self, split: Split) -> ArrayDataset:
        """64, 16 and 20 % of the patients, always the same."""
        values, labels = load_breast_cancer(return_X_y=True)
        rest, test = train_test_split(
            np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
        )
        train, validation = train_test_split(
            rest, test_size=0.2, stratify=labels[rest], random_state=0
        )
        rows = {"train": train, "validation": validation, "test": test}[split]
        columns = {name: values[rows, i] for i, name in enumerate(MEASUREMENTS)}
        return ArrayDataset(**columns, label=labels[rows])

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """Measurements as float32 of shape (N, 30); in training with a small error."""
        values = np.stack([columns[name] for name in MEASUREMENTS], axis=1)
        if random is not None:
            values = values * (1 + self.settings.jitter * (2 * random.uniform(30) - 1))
        batch = {"inputs": torch.from_numpy(values.astype(np.float32))}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(columns["label"].astype(np.int64))
        return batch

    def model(self) -> nn.Module:
        """Its first layer learns each measurement's mean and deviation, and keeps them."""
        return nn.Sequential(
            nn.BatchNorm1d(len(MEASUREMENTS), affine=False),
            nn.Linear(len(MEASUREMENTS), self.settings.hidden),
            nn.ReLU(),
            nn.Linear(self.settings.hidden, len(self.class_names)),
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW for all parameters."""
        return torch.optim.AdamW(model.parameters(), lr=self.settings.learning_rate)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean cross-entropy."""
        return functional.cross_entropy(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        """What is measured beside the loss."""
        return {
            "accuracy": MulticlassAccuracy(num_classes=2, average="micro"),
            "recall": MulticlassRecall(num_classes=2, average="macro"),
        }

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """The likelier class and both probabilities."""
        probabilities = outputs.softmax(dim=1)
        return {"prediction": probabilities.argmax(dim=1), "probabilities": probabilities}
