"""A workload on a table that may lack values, and a run of it that is trained in this process."""

from __future__ import annotations

import numpy as np
import torch
import torchmetrics
from torch import Tensor, nn

from tests.engine.alone import run
from train_core import ArrayDataset, Batch, Columns, SampleRandom, Settings, Split, Workload
from train_core.storage.run_folder import RunFolder

NUM_SAMPLES = 32


class Houses(Workload[Settings]):
    """Cheap or dear by size and age. A missing value stays NaN, for the model to see."""

    class_names = ("cheap", "dear")

    def dataset(self, split: Split) -> ArrayDataset:
        rng = np.random.default_rng(0)
        size, age = rng.normal(size=(2, NUM_SAMPLES)).astype(np.float32)
        return ArrayDataset(size=size, age=age, label=(size > age).astype(np.int64))

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        values = np.stack([columns["size"], columns["age"]], 1).astype(np.float32)
        batch = {"inputs": torch.from_numpy(values)}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(columns["label"])
        return batch

    def model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch["targets"])

    def metrics(self) -> dict[str, torchmetrics.Metric]:
        return {"accuracy": torchmetrics.classification.MulticlassAccuracy(2)}

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"prediction": outputs.argmax(1), "probabilities": outputs.softmax(1)}


def trained(folder: RunFolder, **config: object) -> RunFolder:
    """The folder, with a run of one epoch in it."""
    run(folder, workload=f"{__name__}:Houses", epochs=1, **config)
    return folder
