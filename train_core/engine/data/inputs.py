"""New data to score: Parquet files, a folder of images, IDX files, or one of the splits.

Every kind gives numbered rows, each with an id, which are read as raw columns, a range at a time.
An input is opened in the driver, which lists its files, checks their heads and makes their digests;
the workers read those files only.
"""

from __future__ import annotations

import bisect
import posixpath
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from train_core.datasets.faulty_files import IMAGE_SUFFIXES, naming
from train_core.datasets.files import is_data
from train_core.datasets.protocols import SPLITS, Columns, Dataset, Split, fetch
from train_core.engine.data.formats import (
    ID,
    KINDS,
    Head,
    Kind,
    ParquetRows,
    columns_of,
    first_rows,
    head_of,
    read_image,
)
from train_core.engine.data.input_files import (
    InputFile,
    VerifiedFile,
    changed,
    hashed,
    read_whole,
)
from train_core.engine.data.raw_columns import RawColumns, joined, try_prepare
from train_core.errors import DataError, HiddenLoginError
from train_core.policy.logins import has_hidden_login, hide_logins
from train_core.storage.objects.digests import new_digest
from train_core.storage.objects.store import DataStore, Store
from train_core.workload import Workload, indexed
from train_core.workloads.idx import PACKED, IdxRows

_MOST_LISTED = 1000
"""How many files a manifest lists at most; beyond that it has only a digest of all."""
_NUM_READERS = 16

_T = TypeVar("_T")
_Rows = TypeVar("_Rows", IdxRows, ParquetRows)


@dataclass(frozen=True)
class Input:
    """Rows to score: their kind, their address, and the number of rows in each file."""

    kind: Kind
    source: str
    files: tuple[InputFile, ...]
    digest: str = ""
    """The digest of all names, sizes and contents, or of a split's dataset; empty without one."""

    @property
    def num_rows(self) -> int:
        """All rows of all files."""
        return sum(file.rows for file in self.files)

    @cached_property
    def starts(self) -> list[int]:
        """The number of each file's first row, and the number of all rows."""
        return [0, *np.cumsum([file.rows for file in self.files]).tolist()]

    def describe(self) -> dict[str, Any]:
        """The input without its login, for the manifest of its predictions."""
        found = {"kind": self.kind, "source": hide_logins(self.source), "num_rows": self.num_rows}
        if self.digest:
            found["digest"] = self.digest
        if self.kind == "split":
            return found
        found["num_files"] = len(self.files)
        found["size_bytes"] = sum(file.size_bytes for file in self.files)
        if len(self.files) <= _MOST_LISTED:
            found["files"] = [
                {
                    "name": file.name,
                    "rows": file.rows,
                    "size_bytes": file.size_bytes,
                    "digest": file.digest,
                }
                for file in self.files
            ]
        return found


def open_input(source: str, workload: Workload[Any], *, with_digests: bool = False) -> Input:
    """The rows at `source`: a split's name or a URL.

    Raises DataError if there are no rows or if the workload's `prepare` refuses the columns of a
    file, and HiddenLoginError for an address whose login was removed for the record. Only the heads
    and some first rows of files are read; with `with_digests` all of each file, once. `read_input`
    reads only inputs with digests.
    """
    if has_hidden_login(source):
        raise HiddenLoginError(f"the URL of the input ({source})")
    if source in SPLITS:
        dataset = indexed(workload, source)
        digest = dataset.digest() if with_digests and hasattr(dataset, "digest") else ""
        found = Input("split", source, (InputFile(source, len(dataset)),), digest)
    else:
        found = _open_files(source, workload)
    if not found.num_rows:
        raise DataError(f"input {hide_logins(source)!r} has no rows")
    return _with_digests(found) if with_digests and found.kind != "split" else found


def _with_digests(found: Input) -> Input:
    files = tuple(_in_parallel(partial(hashed, DataStore(found.source)), found.files))
    whole = new_digest()
    for file in files:
        whole.update(f"{file.name}\0{file.size_bytes}\0{file.digest}\n".encode())
    return replace(found, files=files, digest=whole.hexdigest())


def read_input(
    found: Input, workload: Workload[Any], samples: range
) -> tuple[list[str], RawColumns]:
    """The ids and the raw columns of some consecutive rows.

    Raises DataError if a file is not what it was when the input was opened.
    """
    if found.kind == "split":
        columns = fetch(_split(workload, found.source), np.arange(samples.start, samples.stop))
        files = {f"the {found.source} split": list(columns)}
        return [f"{found.source}/{row}" for row in samples], RawColumns(columns, files)
    store, ids = DataStore(found.source), []
    parts: dict[str, Columns] = {}
    for file, rows in _locate(found, samples):
        at = store.uri(file.name)
        with naming(at, f"{found.kind} input (rows {rows.start} to {rows.stop - 1})"):
            names, parts[at] = _read_rows(found.kind, store, file, rows)
        ids += names
    return ids, joined(parts)


def _open_files(source: str, workload: Workload[Any]) -> Input:
    store, sizes = _folder_of(source)
    if not sizes:
        raise DataError(
            f"input {hide_logins(source)!r}: nothing is there, but for names that begin with . or _"
        )
    for kind, matches in KINDS.items():
        if names := [name for name in sizes if matches(name.lower())]:
            return _open_kind(kind, store, _once_each(names), sizes, workload)
    there = f"input {hide_logins(source)!r} holds {', '.join(list(sizes)[:3])}…"
    raise DataError(
        f"{there}: expected *.parquet files, images "
        f"({', '.join(IMAGE_SUFFIXES)}) or IDX files (*idx3-ubyte or *idx3-ubyte.gz), or name "
        f"one of the splits {', '.join(SPLITS)}"
    )


def _open_kind(
    kind: Kind, store: Store, names: list[str], sizes: Mapping[str, int], workload: Workload[Any]
) -> Input:
    """The input of these files, after their heads were read and their columns checked."""
    heads = _in_parallel(lambda name: head_of(kind, store, name, sizes[name]), names)
    files = [
        InputFile(name, head.rows, sizes[name]) for name, head in zip(names, heads, strict=True)
    ]
    _check_columns(kind, store, list(zip(files, heads, strict=True)), workload)
    return Input(kind, store.url, tuple(files))


def _once_each(names: list[str]) -> list[str]:
    """The files, without the compressed one where both forms of a file are there."""
    there = set(names)
    return [
        name for name in names if not (name.endswith(PACKED) and name.removesuffix(PACKED) in there)
    ]


def _check_columns(
    kind: Kind, store: Store, files: list[tuple[InputFile, Head]], workload: Workload[Any]
) -> None:
    """Try the workload's `prepare` with the first rows of one file of each set of columns."""
    kinds = {head.columns: file for file, head in reversed(files) if file.rows}
    for columns, file in kinds.items():
        rows = first_rows(kind, store, file.name, file.size_bytes)
        try_prepare(workload, RawColumns(rows, {store.uri(file.name): columns}))


def _folder_of(source: str) -> tuple[Store, dict[str, int]]:
    """The folder at the address, and the sizes of all files below it, or of a single file."""
    store = DataStore(source)
    sizes = {name: size for name, size in store.sizes().items() if is_data(name)}
    base, parent = posixpath.basename(store.url), DataStore(posixpath.dirname(store.url))
    if sizes or not parent.exists(base):
        return store, sizes
    try:
        return parent, {base: parent.size_bytes(base)}
    except IsADirectoryError:
        return store, sizes


def _locate(found: Input, samples: range) -> list[tuple[InputFile, range]]:
    """The files that hold the rows, with the rows counted inside each file."""
    starts = found.starts
    located = []
    index = bisect.bisect_right(starts, samples.start) - 1
    while index < len(found.files) and starts[index] < samples.stop:
        lo = max(samples.start, starts[index]) - starts[index]
        hi = min(samples.stop, starts[index + 1]) - starts[index]
        if lo < hi:
            located.append((found.files[index], range(lo, hi)))
        index += 1
    return located


def _read_rows(kind: Kind, store: Store, file: InputFile, rows: range) -> tuple[list[str], Columns]:
    # Either spelling of a file of IDX is one name in the ids.
    name = file.name.removesuffix(PACKED) if kind == "idx" else file.name
    if kind == "images":
        return [name], {"image": read_image(read_whole(store, file), store.uri(name))[None]}
    numbered = [f"{name}#{row}" for row in rows]
    if kind == "idx":
        return numbered, {"image": _idx(store.url, file).read(rows)}
    table = _parquet(store.url, file).read(rows)
    if ID in table.column_names:
        numbered = [str(value) for value in table[ID].to_pylist()]
    return numbered, columns_of(table)


def _in_parallel(call: Callable[[Any], _T], items: Iterable[Any]) -> list[_T]:
    """The result of `call` for each item; calls that wait for a storage wait in parallel."""
    with ThreadPoolExecutor(_NUM_READERS, "read") as threads:
        running = [threads.submit(call, item) for item in items]
        try:
            return [one.result() for one in running]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


# The last files stay open for the next batch; plain keys make them findable.
@lru_cache(maxsize=2)
def _split(workload: Workload[Any], split: Split) -> Dataset:
    return indexed(workload, split)


@lru_cache(maxsize=2)
def _idx(url: str, file: InputFile) -> IdxRows:
    store = DataStore(url)
    opened = IdxRows(VerifiedFile(store, file), file.size_bytes, store.uri(file.name))
    return _with_the_rows_of(file, store, opened)


@lru_cache(maxsize=2)
def _parquet(url: str, file: InputFile) -> ParquetRows:
    store = DataStore(url)
    return _with_the_rows_of(
        file, store, ParquetRows(VerifiedFile(store, file), store.uri(file.name))
    )


def _with_the_rows_of(file: InputFile, store: Store, opened: _Rows) -> _Rows:
    """Raise DataError if it was replaced after its head was read and before its digest was made."""
    if opened.num_rows != file.rows:
        raise changed(store, file)
    return opened
