"""A dataset of arrays in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from train_core.datasets.protocols import Columns
from train_core.errors import DataError

_PLAIN = (
    *(str, bytes, bool, int, float, complex, np.generic),
    *(date, time, timedelta, Decimal, UUID, PurePath),
)
"""Types whose `repr` says all of a value; a datetime is a date."""
_PANDAS_NULLS = ("NAType", "NaTType")
"""The types of pandas' words for a missing value; pandas need not be installed."""


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
            if array.dtype.hasobject:
                # Its memory has the places of the objects, which are others in each process.
                for value in array.flat:
                    _add(sha, value, name)
            else:
                sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return sha.hexdigest()


def is_null(value: object) -> bool:
    """Whether it stands for a value that is missing: None, NaN, NaT, and pandas' words for them."""
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64):
        return bool(value != value)  # noqa: PLR0124 (so are NaN and NaT)
    return value is None or type(value).__name__ in _PANDAS_NULLS


def _digest(value: object, column: str) -> bytes:
    sha = hashlib.sha256()
    _add(sha, value, column)
    return sha.digest()


def _add(sha: Any, value: object, column: str) -> None:
    """Add the content of an object. Raises DataError for one whose content is not known."""
    if value is None or isinstance(value, _PLAIN) or type(value).__name__ in _PANDAS_NULLS:
        sha.update(f"{type(value).__name__} {value!r} ".encode())
    elif hasattr(value, "__array__"):
        sha.update(ArrayDataset(**{column: np.atleast_1d(value)}).digest().encode())
    elif isinstance(value, (set, frozenset)):
        # In no order of their own: each process may have another one.
        if all(one is None or isinstance(one, _PLAIN) for one in value):
            _add(sha, sorted(map(repr, value)), column)
            return
        sha.update(f"{type(value).__name__} {len(value)} ".encode())
        for digest in sorted(_digest(one, column) for one in value):
            sha.update(digest)
    elif isinstance(value, (dict, list, tuple)):
        parts = list(value.items() if isinstance(value, dict) else value)
        sha.update(f"{type(value).__name__} {len(parts)} ".encode())
        for one in parts:
            _add(sha, one, column)
    else:
        raise DataError(
            f"column {column!r} holds a {type(value).__name__}, of which it is not known when its "
            "content changes: give numbers, texts, dates, and arrays or lists of them"
        )
