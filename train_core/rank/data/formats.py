"""The formats of data to score: the head of a file, and its rows.

A file's head (its rows and columns) is read without its content where the format allows it: a
Parquet footer, an IDX header. A CSV file and JSON lines are read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from train_core.datasets.faulty_files import IMAGE_SUFFIXES, naming
from train_core.datasets.forms import (
    TEXTS,
    Forms,
)
from train_core.datasets.images import image_of
from train_core.datasets.tables import (
    PARQUET_SUFFIX,
    TEXT_SUFFIXES,
    read_text_table,
)
from train_core.storage.objects.ranges import RangeReader
from train_core.storage.objects.store import Store
from train_core.workloads.idx import PACKED, idx_header

Kind = Literal["split", "parquet", "text", "images", "idx"]

PARQUET, TEXT = "Parquet file", "table of text"
IMAGE = "image"
_FEW = 2
# Columns are read page by page, since only the first rows are wanted.
_BUFFER_BYTES = 2**20

KINDS: Mapping[Kind, Callable[[str], bool]] = {
    "parquet": lambda name: name.endswith(PARQUET_SUFFIX),
    "text": lambda name: name.endswith(TEXT_SUFFIXES),
    "images": lambda name: name.endswith(IMAGE_SUFFIXES),
    "idx": lambda name: name.removesuffix(PACKED).endswith(("idx3-ubyte", "idx4-ubyte")),
}
"""Which files of a folder are of which kind, by their names in lowercase."""

Part: TypeAlias = pa.Table | np.ndarray[Any, Any]
"""Rows of a file: those of a table, or images."""


@dataclass(frozen=True)
class Head:
    """The beginning of a file: the number of its rows, its columns, and the first two rows."""

    rows: int
    first: Callable[[], Part]
    """Reads them: zeros for an IDX file."""
    schema: pa.Schema | None = None
    """The types of a table's columns; None of images."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return (IMAGE,) if self.schema is None else tuple(self.schema.names)


def head_of(kind: Kind, store: Store, name: str, size_bytes: int, forms: Forms) -> Head:
    """The head of the file. Raises DataError if it is not of that kind.

    `forms` are those of the training's columns.
    """
    uri = store.uri(name)
    if kind == "images":
        return Head(1, lambda: image_of(store.read(name), uri)[None])
    if kind == "idx":
        dtype, shape = idx_header(store, name, size_bytes)
        few = (min(shape[0], _FEW), *shape[1:])
        return Head(shape[0], lambda: np.zeros(few, dtype.newbyteorder("=")))
    if kind == "text":
        with naming(uri, TEXT):
            table = read_text_table(store.read(name), name, forms)
        # A slice would keep all of the table in memory.
        few_rows = table.take(list(range(min(_FEW, table.num_rows))))
        return Head(table.num_rows, lambda: few_rows, table.schema)
    with naming(uri, PARQUET):
        file = pq.ParquetFile(RangeReader(store, name, size_bytes))
        first = partial(_first_rows, store, name, size_bytes)
        return Head(file.metadata.num_rows, first, file.schema_arrow)


def _first_rows(store: Store, name: str, size_bytes: int) -> pa.Table:
    with naming(store.uri(name), PARQUET):
        reader = RangeReader(store, name, size_bytes)
        file = pq.ParquetFile(reader, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        batch = next(file.iter_batches(batch_size=_FEW, use_threads=False))
        return pa.Table.from_batches([batch])


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


class TextRows:
    """The rows of a CSV file or of JSON lines, all in memory.

    `forms` are those of the training's columns. The columns `kept` are read apart from what the
    model gets, as texts: an id of digits may begin with zeros.
    """

    def __init__(self, data: bytes, uri: str, forms: Forms, kept: Collection[str]) -> None:
        with naming(uri, TEXT):
            self._table = read_text_table(data, uri, forms)
            as_texts = read_text_table(data, uri, dict.fromkeys(kept, TEXTS)) if kept else None
        self.num_rows: int = self._table.num_rows
        self._kept = as_texts

    def read(self, rows: range) -> pa.Table:
        """Consecutive rows."""
        return self._table.slice(rows.start, len(rows))

    def read_kept(self, rows: range) -> pa.Table:
        """The same rows, of which the kept columns are texts."""
        table = self._table if self._kept is None else self._kept
        return table.slice(rows.start, len(rows))
