"""A small workload on one Parquet file, which a test delivers anew each night."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn

from tests.rank.growing import FolderSettings
from tests.rank.tiny import Linear
from train_core import ArrayDataset, Split

HOLD, HELD = ".hold", ".held"
"""Files beside the data: a training stands still after a step while the one is there, and makes
the other."""
HELD_AFTER = 5


class Points(Linear):
    """Whether a point of the plane lies above the diagonal."""

    Settings = FolderSettings
    settings: FolderSettings

    def sources(self) -> Mapping[str, str]:
        return {"points": f"{self.settings.data}/*.parquet"}

    def dataset(self, split: Split) -> ArrayDataset:
        kept = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}[split]
        (file,) = self.files("points")
        with file.open() as opened:
            table = pq.read_table(opened)
        rows = table.filter(np.isin(np.arange(len(table)) % 10, kept))
        x = np.stack([rows[name].to_numpy() for name in ("x", "y")] * 4, axis=1)
        return ArrayDataset(x=x.astype(np.float32), label=rows["label"].to_numpy())

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        folder = Path(self.settings.data)
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
