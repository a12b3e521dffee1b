"""New data to score: Parquet files, a folder of images, IDX files, or one of the splits.

Every kind gives the same thing: numbered rows with an id each, read as raw columns, a range at
a time. An input is opened in the driver, which checks it, and read in the workers.
"""

from __future__ import annotations

import bisect
import io
import posixpath
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from train_core.errors import DataError
from train_core.storage.store import Store
from train_core.workload import SPLITS, Columns, Dataset, Split, Workload, fetch, indexed

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
ID = "id"

Kind = Literal["split", "parquet", "images", "idx"]


@dataclass(frozen=True)
class Input:
    """Rows to score: what they are, where, and how many each file has."""

    kind: Kind
    source: str
    files: tuple[str, ...]
    rows: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """All rows of all files."""
        return sum(self.rows)

    def describe(self) -> dict[str, Any]:
        """The input, for the manifest of its predictions."""
        return {"kind": self.kind, "source": self.source, "num_rows": self.num_rows}


def open_input(source: str, workload: Workload[Any]) -> Input:
    """The rows at `source`: a split's name or a URL. Raises DataError if there are none."""
    if source in SPLITS:
        found = Input("split", source, (source,), (len(indexed(workload, source)),))
    else:
        found = _open_files(source)
    if not found.num_rows:
        raise DataError(f"input {source!r} has no rows")
    return found


def read_input(found: Input, workload: Workload[Any], samples: range) -> tuple[list[str], Columns]:
    """The ids and the raw columns of some consecutive rows."""
    if found.kind == "split":
        columns = fetch(_split(workload, found.source), np.arange(samples.start, samples.stop))
        return [f"{found.source}/{row}" for row in samples], columns
    parts = [_read_file(found, file, rows) for file, rows in _locate(found, samples)]
    ids = [name for part_ids, _ in parts for name in part_ids]
    names = parts[0][1].keys()
    return ids, {name: np.concatenate([part[1][name] for part in parts]) for name in names}


def _open_files(source: str) -> Input:
    store, names = _folder_of(source)
    if not names:
        raise DataError(f"input {source!r}: nothing is there")
    for kind, matches in _KINDS.items():
        files = tuple(name for name in names if matches(name.lower()))
        if files:
            if kind == "idx":
                # Either spelling of a file is found by its plain name.
                files = tuple(dict.fromkeys(name.removesuffix(".gz") for name in files))
            rows = tuple(1 if kind == "images" else _count(kind, store, name) for name in files)
            return Input(kind, store.url, files, rows)
    raise DataError(
        f"input {source!r} holds {', '.join(names[:3])}…: expected *.parquet files, images "
        f"({', '.join(IMAGE_SUFFIXES)}) or IDX files (*idx3-ubyte or *idx3-ubyte.gz), or name "
        f"one of the splits {', '.join(SPLITS)}"
    )


_KINDS: dict[Kind, Any] = {
    "parquet": lambda name: name.endswith(".parquet"),
    "images": lambda name: name.endswith(IMAGE_SUFFIXES),
    "idx": lambda name: name.removesuffix(".gz").endswith(("idx3-ubyte", "idx4-ubyte")),
}


def _folder_of(source: str) -> tuple[Store, list[str]]:
    """The folder and the names in it; for a single file, its folder and its name."""
    store = Store(source)
    names = store.names()
    base = posixpath.basename(store.url)
    if names and names != [base]:
        return store, names
    parent = Store(posixpath.dirname(store.url))
    return parent, [base] if base in parent.names() else names


def _locate(found: Input, samples: range) -> list[tuple[str, range]]:
    """The files that hold the rows, with the rows counted inside each file."""
    starts = [0, *np.cumsum(found.rows).tolist()]
    located = []
    index = bisect.bisect_right(starts, samples.start) - 1
    while index < len(found.files) and starts[index] < samples.stop:
        lo = max(samples.start, starts[index]) - starts[index]
        hi = min(samples.stop, starts[index + 1]) - starts[index]
        if lo < hi:
            located.append((found.files[index], range(lo, hi)))
        index += 1
    return located


def _count(kind: Kind, store: Store, name: str) -> int:
    if kind == "idx":
        return len(_idx(store.url, name))
    return int(_parquet(store.url, name).metadata.num_rows)


def _read_file(found: Input, file: str, rows: range) -> tuple[list[str], Columns]:
    store = Store(found.source)
    if found.kind == "images":
        return [file], {"image": _image(store, file)[None]}
    if found.kind == "idx":
        images = _idx(found.source, file)[rows.start : rows.stop]
        return [f"{file}#{row}" for row in rows], {"image": images}
    table = _parquet_rows(_parquet(found.source, file), rows)
    ids = (
        [str(value) for value in table[ID].to_pylist()]
        if ID in table.column_names
        else [f"{file}#{row}" for row in rows]
    )
    return ids, {name: _column(table[name]) for name in table.column_names if name != ID}


def _image(store: Store, name: str) -> np.ndarray[Any, Any]:
    try:
        image = Image.open(io.BytesIO(store.read(name)))
        return np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    except OSError as error:
        raise DataError(f"{store.uri(name)} is not a readable image: {error}") from error


# The last few files stay open for the next batch; keys are plain, so that they are found again.
@lru_cache(maxsize=2)
def _split(workload: Workload[Any], split: Split) -> Dataset:
    return indexed(workload, split)


@lru_cache(maxsize=4)
def _idx(url: str, name: str) -> np.ndarray[Any, Any]:
    from train_core.workloads.idx import read_idx

    return read_idx(url, name)


@lru_cache(maxsize=4)
def _parquet(url: str, name: str) -> pq.ParquetFile:
    store = Store(url)
    try:
        return pq.ParquetFile(io.BytesIO(store.read(name)))
    except (OSError, ValueError) as error:
        raise DataError(f"{store.uri(name)} is not a readable Parquet file: {error}") from error


def _parquet_rows(file: pq.ParquetFile, rows: range) -> Any:
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


def _column(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """A column as an array; nested lists of one shape become further dimensions."""
    if pa.types.is_nested(column.type):
        return np.asarray(column.to_pylist())
    return np.asarray(column.to_numpy())
