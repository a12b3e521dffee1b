"""A small workload on one Parquet file, which a test delivers anew each night."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from train_core import ArrayDataset, Batch, Columns, SampleRandom, Settings, Split, Workload

HOLD, HELD = ".hold", ".held"
"""Files beside the data: a training stands still after a step while the one is there, and makes
the other."""
HELD_AFTER = 5


class PointsSettings(Settings):
    folder: str


class Points(Workload[PointsSettings]):
    """Whether a point of the plane lies above the diagonal."""

    Settings = PointsSettings
    class_names = ("below", "above")

    def sources(self) -> Mapping[str, str]:
        return {"points": f"{self.settings.folder}/*.parquet"}

    def dataset(self, split: Split) -> ArrayDataset:
        kept = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}[split]
        (file,) = self.files("points")
        with file.open() as opened:
            table = pq.read_table(opened)
        rows = table.filter(np.isin(np.arange(len(table)) % 10, kept))
        return ArrayDataset(**{name: rows[name].to_numpy() for name in ("x", "y", "label")})

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        values = np.stack([columns["x"], columns["y"]], axis=1).astype(np.float32)
        batch = {"inputs": torch.from_numpy(values)}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(columns["label"].astype(np.int64))
        return batch

    def model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.5)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": MulticlassAccuracy(num_classes=2, average="micro")}

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        return {"prediction": outputs.argmax(dim=1)}

    def after_step(self, model: nn.Module, step: int) -> None:
        folder = Path(self.settings.folder)
        if step == HELD_AFTER and (folder / HOLD).exists():
            (folder / HELD).touch()
            while (folder / HOLD).exists():
                time.sleep(0.05)


def deliver(folder: Path, num_rows: int, y: str = "y") -> None:
    """Write so many points over those of the night before; `y` is the second column's name."""
    random = np.random.default_rng(num_rows)
    columns = {name: random.random(num_rows) for name in ("x", "y")}
    above = columns["y"] > columns["x"]
    table = pa.table({"x": columns["x"], y: columns["y"], "label": above.astype(np.int64)})
    pq.write_table(table, folder / "points.parquet")
