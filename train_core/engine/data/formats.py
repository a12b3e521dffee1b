"""The formats of data to score: the head of a file, and its rows.

A file's head (its rows and columns) is read without its content: a Parquet footer, an IDX header.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from train_core.datasets.faulty_files import IMAGE_SUFFIXES, naming
from train_core.datasets.protocols import Columns
from train_core.storage.objects.ranges import RangeReader
from train_core.storage.objects.store import Store
from train_core.workloads.idx import PACKED, idx_header

Kind = Literal["split", "parquet", "images", "idx"]

PARQUET = "Parquet file"
ID = "id"
_IMAGE = "image"
_FEW = 2
# Columns are read page by page, since only the first rows are wanted.
_BUFFER_BYTES = 2**20

KINDS: Mapping[Kind, Callable[[str], bool]] = {
    "parquet": lambda name: name.endswith(".parquet"),
    "images": lambda name: name.endswith(IMAGE_SUFFIXES),
    "idx": lambda name: name.removesuffix(PACKED).endswith(("idx3-ubyte", "idx4-ubyte")),
}
"""Which files of a folder are of which kind, by their names in lowercase."""


@dataclass(frozen=True)
class Head:
    """The head of a file: the number of its rows, and its columns without the id."""

    rows: int
    columns: tuple[str, ...]


def head_of(kind: Kind, store: Store, name: str, size_bytes: int) -> Head:
    """The head of the file. Raises DataError if it is not of that kind."""
    if kind == "images":
        return Head(1, (_IMAGE,))
    if kind == "idx":
        _, shape = idx_header(store, name, size_bytes)
        return Head(shape[0], (_IMAGE,))
    with naming(store.uri(name), PARQUET):
        file = pq.ParquetFile(RangeReader(store, name, size_bytes))
        columns = tuple(column for column in file.schema_arrow.names if column != ID)
        return Head(file.metadata.num_rows, columns)


def first_rows(kind: Kind, store: Store, name: str, size_bytes: int) -> Columns:
    """At most two first rows, with little more read than these; zeros for an IDX file."""
    if kind == "images":
        return {_IMAGE: read_image(store.read(name), store.uri(name))[None]}
    if kind == "idx":
        dtype, shape = idx_header(store, name, size_bytes)
        rows = (min(shape[0], _FEW), *shape[1:])
        return {_IMAGE: np.zeros(rows, dtype.newbyteorder("="))}
    with naming(store.uri(name), PARQUET):
        reader = RangeReader(store, name, size_bytes)
        file = pq.ParquetFile(reader, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        batch = next(file.iter_batches(batch_size=_FEW, use_threads=False))
        return columns_of(pa.Table.from_batches([batch]))


class ParquetRows:
    """The rows of a Parquet file, of which one row group at a time is held in memory.

    The last row group is kept, since the next rows are most often in it. Raises DataError if the
    file is not Parquet.
    """

    def __init__(self, file: RangeReader, uri: str) -> None:
        self._uri = uri
        with naming(uri, PARQUET):
            self._file = pq.ParquetFile(file)
        metadata = self._file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts = [0, *accumulate(sizes)]
        self._kept: tuple[int, pa.Table] | None = None

    @property
    def num_rows(self) -> int:
        """All rows of the file."""
        return int(self._starts[-1])

    def read(self, rows: range) -> pa.Table:
        """Consecutive rows, at least one. Only the row groups that hold them are read."""
        parts = []
        for group, (start, stop) in enumerate(pairwise(self._starts)):
            lo, hi = max(rows.start, start), min(rows.stop, stop)
            if lo < hi:
                parts.append(self._row_group(group).slice(lo - start, hi - lo))
        return pa.concat_tables(parts)

    def _row_group(self, group: int) -> pa.Table:
        if self._kept is None or self._kept[0] != group:
            # Freed before the next one is read, so that only one is in memory.
            self._kept = None
            with naming(self._uri, PARQUET):
                self._kept = group, self._file.read_row_group(group)
        return self._kept[1]


def columns_of(table: pa.Table) -> Columns:
    """The table's columns as arrays, without the id."""
    return {name: _column(table[name]) for name in table.column_names if name != ID}


def read_image(data: bytes, uri: str) -> np.ndarray[Any, Any]:
    """The image with these bytes, grey or RGB. Raises DataError if it is not an image."""
    with naming(uri, "image"):
        image = Image.open(io.BytesIO(data))
        return np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))


def _column(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """A column as an array; nested lists of one shape become further dimensions."""
    if pa.types.is_nested(column.type):
        return np.asarray(column.to_pylist())
    return np.asarray(column.to_numpy())
