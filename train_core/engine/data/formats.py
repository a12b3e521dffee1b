"""The formats of data to score: what the beginning or the end of a file tells, and its rows.

A file's head (its rows and columns) is read without its content: a Parquet footer, an IDX header.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from train_core.errors import DataError, EvertrainError
from train_core.storage.objects.ranges import RangeReader
from train_core.storage.objects.store import Store
from train_core.workload import Columns

Kind = Literal["split", "parquet", "images", "idx"]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
ID = "id"
_IMAGE = "image"
_FEW = 2
# A page of a column at a time, and not all of it, where only the first rows are wanted.
_BUFFER_BYTES = 2**20

KINDS: Mapping[Kind, Callable[[str], bool]] = {
    "parquet": lambda name: name.endswith(".parquet"),
    "images": lambda name: name.endswith(IMAGE_SUFFIXES),
    "idx": lambda name: name.removesuffix(".gz").endswith(("idx3-ubyte", "idx4-ubyte")),
}
"""Which files of a folder are of which kind, by their names in lowercase."""


@dataclass(frozen=True)
class Head:
    """What a file says of itself: its rows and its columns, the rows' id aside."""

    rows: int
    columns: tuple[str, ...]


def head_of(kind: Kind, store: Store, name: str, size_bytes: int) -> Head:
    """What the file says of itself. Raises DataError if it is not of that kind."""
    if kind == "images":
        return Head(1, (_IMAGE,))
    if kind == "idx":
        from train_core.workloads.idx import idx_header

        _, shape = idx_header(store, name, size_bytes)
        return Head(shape[0], (_IMAGE,))
    with _readable(store.uri(name)):
        file = pq.ParquetFile(RangeReader(store, name, size_bytes))
        columns = tuple(column for column in file.schema_arrow.names if column != ID)
        return Head(file.metadata.num_rows, columns)


def first_rows(kind: Kind, store: Store, name: str, size_bytes: int) -> Columns:
    """The first two rows or less, reading little more; of an IDX file, rows of zeros."""
    if kind == "images":
        return {_IMAGE: read_image(store.read(name), store.uri(name))[None]}
    if kind == "idx":
        from train_core.workloads.idx import idx_header

        dtype, shape = idx_header(store, name, size_bytes)
        rows = (min(shape[0], _FEW), *shape[1:])
        return {_IMAGE: np.zeros(rows, dtype.newbyteorder("="))}
    with _readable(store.uri(name)):
        reader = RangeReader(store, name, size_bytes)
        file = pq.ParquetFile(reader, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        batch = next(file.iter_batches(batch_size=_FEW, use_threads=False))
        return columns_of(pa.Table.from_batches([batch]))


def open_parquet(data: bytes, uri: str) -> pq.ParquetFile:
    """The Parquet file with these bytes. Raises DataError if it is none."""
    with _readable(uri):
        return pq.ParquetFile(pa.BufferReader(data))


def parquet_rows(file: pq.ParquetFile, rows: range) -> pa.Table:
    """The rows, reading only the row groups that hold them."""
    groups: list[int] = []
    before = start = 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if before < rows.stop and before + size > rows.start:
            if not groups:
                start = before
            groups.append(group)
        before += size
    return file.read_row_groups(groups).slice(rows.start - start, len(rows))


def columns_of(table: pa.Table) -> Columns:
    """The table's columns as arrays, without the id."""
    return {name: _column(table[name]) for name in table.column_names if name != ID}


def read_image(data: bytes, uri: str) -> np.ndarray[Any, Any]:
    """The image with these bytes, grey or RGB. Raises DataError if it is none."""
    try:
        image = Image.open(io.BytesIO(data))
        return np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    except OSError as error:
        raise DataError(f"{uri} is not a readable image: {error}") from error


@contextmanager
def _readable(uri: str) -> Iterator[None]:
    try:
        yield
    except EvertrainError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{uri} is not a readable Parquet file: {error}") from error


def _column(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """A column as an array; nested lists of one shape become further dimensions."""
    if pa.types.is_nested(column.type):
        return np.asarray(column.to_pylist())
    return np.asarray(column.to_numpy())
