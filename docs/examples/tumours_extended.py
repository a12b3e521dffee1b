"""What some workloads need beyond `tumours.py`, each in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import Field
from torch import Tensor, nn
from tumours import MEASUREMENTS, Tumours, TumourSettings

from train_core import SPLITS, ArrayDataset, Columns, DataFile, Dataset, Split


class TumoursInParquetSettings(TumourSettings):
    """Where the files are."""

    folder: str = Field(description="Folder of Parquet files, a path or any fsspec URL.")


class TumoursInParquet(Tumours):
    """Reads a folder to which a file with new patients comes every night."""

    Settings = TumoursInParquetSettings

    def sources(self) -> Mapping[str, str]:
        """All Parquet files of the folder, and of the folders in it."""
        return {"patients": f"{self.settings.folder}/**/*.parquet"}

    def dataset(self, split: Split) -> ArrayDataset:
        """64, 16 and 20 % of each file's rows: a patient stays in his split when files come."""
        kept = {"train": range(16), "validation": range(16, 20), "test": range(20, 25)}[split]
        tables = []
        for file in self.files("patients"):
            with file.open() as opened:
                table = pq.read_table(opened)
            tables.append(table.filter(np.isin(np.arange(len(table)) % 25, kept)))
        rows = pa.concat_tables(tables)
        return ArrayDataset(**{name: rows[name].to_numpy() for name in (*MEASUREMENTS, "label")})


class MappedRows:
    """Rows of a `.npy` file with named columns, larger than memory: read as they are asked for."""

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self._rows = np.load(file.url, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        row = self._rows[index]
        return {name: row[name] for name in row.dtype.names}

    def __getitems__(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> Columns:
        rows = self._rows[indices]
        return {name: rows[name] for name in rows.dtype.names}

    def digest(self) -> str:
        """That of the file, which evertrain has computed already."""
        return self._file.digest


class TumoursOnDiskSettings(TumourSettings):
    """Where the files are."""

    folder: str = Field(description="Folder of train.npy, validation.npy and test.npy, on a disk.")


class TumoursOnDisk(Tumours):
    """Maps its splits from files."""

    Settings = TumoursOnDiskSettings

    def sources(self) -> Mapping[str, str]:
        """The files that are named after the splits."""
        return {split: f"{self.settings.folder}/{split}.npy" for split in SPLITS}

    def dataset(self, split: Split) -> Dataset:
        """The one file of the split."""
        return MappedRows(*self.files(split))


class Averaged(nn.Module):
    """A model and a moving average of it: the one is trained, the other is used."""

    def __init__(self, live: nn.Module) -> None:
        super().__init__()
        self.live = live
        self.average = deepcopy(live).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """The live model's outputs in training, the average's everywhere else."""
        return self.live(inputs) if self.training else self.average(inputs)


class AveragedTumours(Tumours):
    """Validates, evaluates and serves an exponential moving average of the weights."""

    def model(self) -> nn.Module:
        """The average is part of the model, so every checkpoint has it."""
        return Averaged(super().model())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The average is not trained."""
        return super().optimizer(model.live)

    def after_step(self, model: nn.Module, step: int) -> None:
        """Move the average; its first steps count more, as in the mean of a short series."""
        weight = max(0.05, 1 / (step + 1))
        live = model.live.state_dict()
        for name, average in model.average.state_dict().items():
            if average.is_floating_point():
                average.lerp_(live[name], weight)
            else:
                average.copy_(live[name])


class AnchoredTumours(Tumours):
    """Stays near the weights it started from, as when a good model is trained on new data."""

    anchor: dict[str, Tensor]

    def model(self) -> nn.Module:
        """A new model, whose weights become the anchor."""
        model = super().model()
        self.anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
        return model

    def after_step(self, model: nn.Module, step: int) -> None:
        """Pull every weight back by a thousandth of the way that it has gone."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.lerp_(self.anchor[name].to(parameter.device), 1e-3)

    def state_dict(self) -> dict[str, Any]:
        """The anchor is no part of the model, so nothing else would keep it."""
        return {"anchor": self.anchor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The anchor of the run that is continued, not that of the model just made."""
        self.anchor = dict(state["anchor"])
