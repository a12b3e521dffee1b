"""A workload on a folder of Parquet files that grows, as new data arrives night after night."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field
from torch import nn

from tests.chaos.standing import NOTES, stand_still
from tests.rank.tiny import Tiny, TinySettings
from train_core import ArrayDataset
from train_core.datasets.protocols import Split

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


class GrowingSettings(TinySettings):
    """Where the files are."""

    data: str = Field(description="A folder of Parquet files.")
    pause_s: float = Field(default=0, description="What a step takes longer, so that it is struck.")


class Growing(Tiny):
    """The tiny network on all files that are there when a run begins."""

    Settings = GrowingSettings
    settings: GrowingSettings

    def sources(self) -> Mapping[str, str]:
        return {"days": f"{self.settings.data}/*.parquet"}

    def dataset(self, split: Split) -> ArrayDataset:
        """The rows of a split, over all files; a row stays in its split for ever."""
        tables = []
        for file in self.files("days"):
            with file.open() as opened:
                tables.append(pq.read_table(opened))
        table = pa.concat_tables(tables)
        of_split = np.array([SPLIT_OF_REST.get(rest, "train") for rest in range(10)]) == split
        chosen = table.filter(of_split[table["row"].to_numpy() % 10])
        x = np.stack([chosen[name].to_numpy() for name in FEATURES], axis=1).astype(np.float32)
        return ArrayDataset(x=x, label=chosen["label"].to_numpy())

    def after_step(self, model: nn.Module, step: int) -> None:
        """Stand still if there is a folder of notes for it; the first that comes, and once."""
        super().after_step(model, step)
        time.sleep(self.settings.pause_s)
        if step == HELD_STEP and Path(os.environ.get(NOTES, "-")).is_dir():
            stand_still()
