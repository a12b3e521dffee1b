"""A dataset of arrays in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from train_core.datasets.protocols import Columns
from train_core.errors import DataError


class ArrayDataset:
    """Raw columns in memory (or memory-mapped), read a batch at a time."""

    def __init__(self, **columns: npt.NDArray[Any]) -> None:
        lengths = {name: len(array) for name, array in columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"columns of one dataset have different lengths: {lengths}")
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return {name: array[index] for name, array in self.columns.items()}

    def __getitems__(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> Columns:
        return {name: array[indices] for name, array in self.columns.items()}

    def digest(self) -> str:
        """SHA-256 over names, types, shapes and values."""
        sha = hashlib.sha256()
        for name, array in sorted(self.columns.items()):
            sha.update(f"{name} {array.dtype.str} {array.shape}".encode())
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()
