"""A workload on a folder of Parquet files that grows, as new data arrives night after night."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torchmetrics
from pydantic import Field
from torch import Tensor, nn
from torchmetrics import Metric

from tests.chaos.standing import NOTES, stand_still
from train_core import ArrayDataset, Batch, Columns, Settings, Workload
from train_core.datasets.protocols import Split
from train_core.policy.samples.randomness import SampleRandom

ROWS = 400
"""Rows of each file that arrives."""
FEATURES = tuple(f"x{i}" for i in range(8))
SPLIT_OF_REST: dict[int, Split] = {0: "test", 1: "validation"}
"""Of ten rows one is tested, one validated on; the others are trained on."""
HELD_STEP = 5


def arrive(folder: Path, number: int) -> Path:
    """Add a file to the folder, whole at once: the rows of one delivery."""
    random = np.random.default_rng(number)
    columns = {name: random.normal(size=ROWS) for name in FEATURES}
    label = sum(columns[name] for name in FEATURES[:3]) > 0
    rows = {"row": np.arange(ROWS) + number * ROWS, **columns, "label": label.astype(np.int64)}
    folder.mkdir(parents=True, exist_ok=True)
    file, written = folder / f"day-{number:04}.parquet", folder / f".day-{number:04}"
    pq.write_table(pa.table(rows), written)
    return written.rename(file)


def files_of(folder: Path) -> list[Path]:
    """The files that are there, in the order of their names."""
    return sorted(folder.glob("*.parquet"))


class GrowingSettings(Settings):
    """Where the files are."""

    data: str = Field(description="A folder of Parquet files.")
    learning_rate: float = 0.01
    pause_s: float = Field(default=0, description="What a step takes longer, so that it is struck.")


class Growing(Workload[GrowingSettings]):
    """A small network on all files that are there when a run begins."""

    Settings = GrowingSettings
    class_names = ("no", "yes")

    def sources(self) -> Mapping[str, str]:
        return {"days": f"{self.settings.data}/*.parquet"}

    def dataset(self, split: Split) -> ArrayDataset:
        """The rows of a split, over all files; a row stays in its split for ever."""
        tables = []
        for file in self.files("days"):
            with file.open() as opened:
                tables.append(pq.read_table(opened))
        table = pa.concat_tables(tables)
        columns = {name: table[name].to_numpy() for name in table.column_names}
        of_split = np.array([SPLIT_OF_REST.get(rest, "train") for rest in range(10)]) == split
        chosen = of_split[columns["row"] % 10]
        return ArrayDataset(**{name: column[chosen] for name, column in columns.items()})

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """The features as float32, with a little noise in training."""
        inputs = np.stack([columns[name] for name in FEATURES], axis=1)
        if random is not None:
            inputs = inputs + 0.05 * random.uniform(len(FEATURES))
        batch = {"inputs": torch.from_numpy(inputs.astype(np.float32))}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(columns["label"])
        return batch

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(len(FEATURES), 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), self.settings.learning_rate)

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": torchmetrics.Accuracy("multiclass", num_classes=2)}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        metric.update(outputs.argmax(1), batch["targets"])

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        return {"prediction": outputs.argmax(1)}

    def after_step(self, model: nn.Module, step: int) -> None:
        """Stand still if there is a folder of notes for it; the first that comes, and once."""
        time.sleep(self.settings.pause_s)
        if step == HELD_STEP and Path(os.environ.get(NOTES, "-")).is_dir():
            stand_still()
