"""Tiny workloads on folders of files to which more may come: one names them, one lists itself."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn

from tests.rank.tiny import PlainDataset, Tiny, TinySettings
from train_core import ArrayDataset
from train_core.datasets.protocols import SPLITS, Split
from train_core.storage.objects.store import Store


class FolderSettings(TinySettings):
    data: str


def write_rows(url: str, split: Split, file: str, count: int, seed: int = 0) -> None:
    """One more file with rows of a split."""
    rng = np.random.Generator(np.random.Philox([seed, SPLITS.index(split)]))
    buffer = io.BytesIO()
    np.save(buffer, rng.standard_normal((count, 8)).astype(np.float32))
    Store(url).write(f"{split}/{file}", buffer.getvalue())


def write_splits(url: str) -> None:
    for split, count in zip(SPLITS, (150, 70, 40), strict=True):
        write_rows(url, split, "day-1.npy", count, seed=1)


def add_files(url: str) -> None:
    """A file more for every split: what arrives over night."""
    for split in SPLITS:
        write_rows(url, split, "day-2.npy", 30, seed=2)


def rows_of(contents: Iterable[bytes]) -> ArrayDataset:
    x = np.concatenate([np.load(io.BytesIO(content)) for content in contents])
    return ArrayDataset(x=x, label=(x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5))


class Named(Tiny):
    """Names its files."""

    Settings = FolderSettings
    settings: FolderSettings

    def sources(self) -> Mapping[str, str]:
        return {split: f"{self.settings.data}/{split}" for split in SPLITS}

    def dataset(self, split: Split) -> ArrayDataset:
        return rows_of(file.read() for file in self.files(split))


class Overnight(Named):
    """A file more comes for every split as soon as the test split was read: so before it trains."""

    def dataset(self, split: Split) -> ArrayDataset:
        found = super().dataset(split)
        if split == "test":
            add_files(self.settings.data)
        return found

    def after_step(self, model: nn.Module, step: int) -> None:
        """And another one while it trains."""
        super().after_step(model, step)
        if step == 2:
            write_rows(self.settings.data, "test", "day-3.npy", 30, seed=3)


class Opened(Named):
    """As `Named`; reads as pyarrow and its kin do."""

    def dataset(self, split: Split) -> ArrayDataset:
        contents = []
        for file in self.files(split):
            with file.open() as opened:
                contents.append(opened.read())
        return rows_of(contents)


class Listing(Named):
    """Lists its files itself."""

    def sources(self) -> Mapping[str, str]:
        return {}

    def dataset(self, split: Split) -> ArrayDataset:
        store = Store(f"{self.settings.data}/{split}")
        return rows_of(store.read(name) for name in store.names())


class OneRankElsewhere(Listing):
    """As `Listing`; rank 1 finds a file that the others do not."""

    def dataset(self, split: Split) -> Any:
        found = super().dataset(split)
        if dist.is_initialized() and dist.get_rank() == 1:
            x = np.concatenate([found.columns["x"], found.columns["x"][:5]])
            return ArrayDataset(x=x, label=np.zeros(len(x), np.int64))
        return found


class Counting(Listing):
    """As `Listing`, and its rows have no digest."""

    def dataset(self, split: Split) -> Any:
        return PlainDataset(super().dataset(split), transform=False)


class Hasty(Named):
    """Asks for its files before the run's record is known."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.files("train")
