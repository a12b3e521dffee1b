"""New data to score: tables, a folder of images, IDX files, or one of the splits.

Every kind gives numbered rows, each with an id, which are read as raw columns, a range at a time.
An input is opened in the driver, which lists its files, checks their heads and makes their digests;
the workers read those files only.
"""

from __future__ import annotations

import bisect
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from train_core.datasets.faulty_files import IMAGE_SUFFIXES, naming
from train_core.datasets.files import is_data
from train_core.datasets.forms import (
    Forms,
    check_forms,
)
from train_core.datasets.images import image_of
from train_core.datasets.protocols import SPLITS, Columns, Dataset, Split, fetch
from train_core.datasets.tables import (
    PARQUET_SUFFIX,
    TEXT_SUFFIXES,
    columns_of,
    has_no_types,
)
from train_core.errors import DataError, HiddenLoginError
from train_core.policy.logins import has_hidden_login, hide_logins
from train_core.rank.data.formats import (
    IMAGE,
    KINDS,
    Head,
    Kind,
    ParquetRows,
    Part,
    TextRows,
    head_of,
)
from train_core.rank.data.input_files import (
    InputFile,
    VerifiedFile,
    changed,
    hashed,
    read_whole,
)
from train_core.rank.data.raw_columns import RawColumns, try_prepare
from train_core.requests import KeptColumns
from train_core.storage.objects.digest_algorithm import new_digest
from train_core.storage.objects.store import DataStore, Store
from train_core.workload import Workload, indexed, recorded_forms
from train_core.workloads.idx import PACKED, IdxRows

_MOST_LISTED = 1000
"""How many files a manifest lists at most; beyond that it has only a digest of all."""
_NUM_READERS = 16

ID = "id"
"""The column that has the rows' ids, where the input has it and no other one is asked for."""

_NOTHING = pa.schema([])
_KEEPS_NONE = KeptColumns()
_MOST_SAMPLED = 1000
_T = TypeVar("_T")
_Opened = TypeVar("_Opened", IdxRows, ParquetRows, TextRows)


@dataclass(frozen=True)
class Input:
    """Rows to score: their kind, their address, and the number of rows in each file."""

    kind: Kind
    source: str
    files: tuple[InputFile, ...]
    keeps: KeptColumns = _KEEPS_NONE
    kept: pa.Schema = _NOTHING
    """The types of the columns that are stored beside the predictions, the same for all files."""
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
        if self.keeps.names:
            found["id_column"], found["columns"] = self.keeps.id_column, list(self.keeps.columns)
        if self.kind == "split":
            return found
        found["num_files"] = len(self.files)
        found["size_bytes"] = sum(file.size_bytes for file in self.files)
        if len(self.files) <= _MOST_LISTED:
            found["files"] = [
                {
                    "name": _text(file.name),
                    "rows": file.rows,
                    "size_bytes": file.size_bytes,
                    "digest": file.digest,
                }
                for file in self.files
            ]
        return found


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of an input that are prepared at once: their files have the same columns."""

    ids: list[str | None]
    columns: RawColumns
    kept: pa.Table
    """The columns that are stored beside the predictions."""


def open_input(
    source: str,
    workload: Workload[Any],
    keeps: KeptColumns | None = None,
    *,
    forms: Forms | None = None,
    with_digests: bool = False,
) -> Input:
    """The rows at `source`: a split's name or a URL. There may be none in the files.

    Raises DataError if there are no files, if the workload's `prepare` refuses the columns of a
    file, or if one lacks a column that is asked for; HiddenLoginError for an address whose login
    was removed for the record. Only the heads and some first rows of Parquet, images and IDX are
    read; with `with_digests` all of each file, once. `read_input` reads only inputs with digests.
    `forms` are those of the training's columns, if the workload's run is not recorded yet.
    """
    if has_hidden_login(source):
        raise HiddenLoginError(f"the URL of the input ({source})")
    keeps = keeps or KeptColumns()
    if source not in SPLITS:
        forms = _of_inputs(recorded_forms(workload) if forms is None else forms, workload)
        found = _open_files(source, workload, keeps, forms)
        return _with_digests(found) if with_digests else found
    dataset = indexed(workload, source)
    if not len(dataset):
        raise DataError(f"input {source!r} has no rows")
    kept = _NOTHING
    if keeps.names:
        columns = fetch(dataset, np.arange(min(len(dataset), _MOST_SAMPLED)))
        _check_kept(keeps, columns, f"the {source} split")
        kept = pa.table({name: _arrow(columns[name]) for name in keeps.columns}).schema
    digest = dataset.digest() if with_digests and hasattr(dataset, "digest") else ""
    return Input("split", source, (InputFile(source, len(dataset)),), keeps, kept, digest)


def _with_digests(found: Input) -> Input:
    files = tuple(_in_parallel(partial(hashed, DataStore(found.source)), found.files))
    whole = new_digest()
    for file in files:
        whole.update(f"{_text(file.name)}\0{file.size_bytes}\0{file.digest}\n".encode())
    return replace(found, files=files, digest=whole.hexdigest())


def read_input(found: Input, workload: Workload[Any], samples: range) -> Iterator[Rows]:
    """Some consecutive rows, cut where the next file has other columns, types or shapes.

    So no row's columns depend on the file beside its own. Raises DataError if a file is not what it
    was when the input was opened, or holds other kinds of values than the training data.
    """
    parts = (
        _rows_of_split(found, workload, samples)
        if found.kind == "split"
        else _rows_of_files(found, workload, samples)
    )
    for _, alike in groupby(parts, lambda rows: _layout(rows.columns)):
        yield _joined(list(alike))


def _rows_of_split(found: Input, workload: Workload[Any], samples: range) -> Iterator[Rows]:
    columns = fetch(_split(workload, found.source), np.arange(samples.start, samples.stop))
    kept = pa.table({name: _arrow(columns[name]) for name in found.keeps.columns}).cast(found.kept)
    ids: list[str | None] = [f"{found.source}/{row}" for row in samples]
    if name := found.keeps.id_column:
        ids = [_spelled(value) for value in columns[name].tolist()]
    files = {f"the {found.source} split": list(columns)}
    yield Rows(ids, RawColumns(columns, files), kept)


def _rows_of_files(found: Input, workload: Workload[Any], samples: range) -> Iterator[Rows]:
    store, forms = DataStore(found.source), _of_inputs(recorded_forms(workload), workload)
    for file, rows in _locate(found, samples):
        at = store.uri(file.name)
        with naming(at, f"{found.kind} input (rows {rows.start} to {rows.stop - 1})"):
            part, beside = _read_part(found, store, file, rows, forms)
        columns, keeps = _columns(part, forms, at), found.keeps
        # Either spelling of a file of IDX is one name in the ids.
        name = _text(file.name.removesuffix(PACKED) if found.kind == "idx" else file.name)
        ids: list[str | None] = [f"{name}#{row}" for row in rows]
        if found.kind == "images":
            ids = [name]
        kept = pa.table({})
        if beside is not None:
            if (id_column := keeps.id_column or ID) in beside.column_names:
                ids = [_spelled(value) for value in beside[id_column].to_pylist()]
            kept = beside.select(keeps.columns).cast(found.kept)
        yield Rows(ids, RawColumns(columns, {at: list(columns)}), kept)


def _layout(columns: Columns) -> list[tuple[str, str, tuple[int, ...]]]:
    """What rows of two files need to have in common to be prepared at once."""
    return sorted((name, array.dtype.str, array.shape[1:]) for name, array in columns.items())


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    names = list(parts[0].columns)
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
    files = {file: known for part in parts for file, known in part.columns.files.items()}
    return Rows(
        [one for part in parts for one in part.ids],
        RawColumns(columns, files),
        pa.concat_tables([part.kept for part in parts]),
    )


def _columns(part: Part, forms: Forms, where: str) -> dict[str, np.ndarray[Any, Any]]:
    """The rows as raw columns. Raises DataError for other kinds of values than in training."""
    if not isinstance(part, pa.Table):
        return {IMAGE: part}
    columns = columns_of(part, forms)
    check_forms(columns, forms, where)
    return columns


def _of_inputs(forms: Forms, workload: Workload[Any]) -> Forms:
    """The forms of the columns that are no targets."""
    return {name: form for name, form in forms.items() if name not in workload.target_columns}


def _kept_names(keeps: KeptColumns) -> tuple[str, ...]:
    return (keeps.id_column or ID, *keeps.columns)


def _arrow(array: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(array if array.ndim == 1 else array.tolist())


def _spelled(value: object) -> str | None:
    return None if value is None else str(value)


def _text(name: str) -> str:
    """A file's name as text: a disk may have names that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _open_files(source: str, workload: Workload[Any], keeps: KeptColumns, forms: Forms) -> Input:
    store, sizes = _folder_of(source)
    if not sizes:
        raise DataError(
            f"input {hide_logins(source)!r}: nothing is there, but for names that begin with . or _"
        )
    found = {
        kind: names
        for kind, matches in KINDS.items()
        if (names := [name for name in sizes if matches(name.lower())])
    }
    if len(found) > 1:
        firsts = " and ".join(f"{names[0]} ({kind})" for kind, names in found.items())
        raise DataError(
            f"input {hide_logins(source)!r} holds data of several kinds, {firsts}: only one of "
            "them would be scored. Give the kinds a folder each, or name a file"
        )
    for kind, listed in found.items():
        names = _once_each(listed) if kind == "idx" else listed
        heads = _heads(kind, store, names, sizes, forms)
        _check_columns(store, heads, workload, keeps, forms)
        kept = _kept(keeps, heads, store)
        return Input(kind, store.url, tuple(file for file, _ in heads), keeps, kept)
    there = f"input {hide_logins(source)!r} holds {', '.join(list(sizes)[:3])}…"
    raise DataError(
        f"{there}: expected tables (*{PARQUET_SUFFIX}, *{', *'.join(TEXT_SUFFIXES)}), images "
        f"({', '.join(IMAGE_SUFFIXES)}) or IDX files (*idx3-ubyte or *idx3-ubyte.gz), or name "
        f"one of the splits {', '.join(SPLITS)}"
    )


def _heads(
    kind: Kind, store: Store, names: list[str], sizes: Mapping[str, int], forms: Forms
) -> list[tuple[InputFile, Head]]:
    heads = _in_parallel(lambda name: head_of(kind, store, name, sizes[name], forms), names)
    return [
        (InputFile(name, head.rows, sizes[name]), head)
        for name, head in zip(names, heads, strict=True)
    ]


def _once_each(names: list[str]) -> list[str]:
    """The files, without the compressed one where both forms of a file are there."""
    there = set(names)
    return [
        name for name in names if not (name.endswith(PACKED) and name.removesuffix(PACKED) in there)
    ]


def _check_columns(
    store: Store,
    heads: list[tuple[InputFile, Head]],
    workload: Workload[Any],
    keeps: KeptColumns,
    forms: Forms,
) -> None:
    """Try the workload's `prepare` with the first rows of one file of each set of columns."""
    kinds = {
        head.columns if head.schema is None else str(head.schema): (file, head)
        for file, head in reversed(heads)
        if file.rows
    }
    for file, head in kinds.values():
        uri, columns = store.uri(file.name), head.columns
        _check_kept(keeps, columns, uri)
        try_prepare(workload, RawColumns(_columns(head.first(), forms, uri), {uri: columns}))


def _kept(keeps: KeptColumns, heads: list[tuple[InputFile, Head]], store: Store) -> pa.Schema:
    """The types that the columns have in all files. Raises DataError if there is none for both."""
    kept, first = _NOTHING, ""
    for file, head in heads:
        if head.schema is None or not file.rows:
            continue
        # What is kept is what is written there.
        kinds = {name: head.schema.field(name).type for name in keeps.columns}
        if has_no_types(file.name):
            kinds = dict.fromkeys(kinds, pa.string())
        here = pa.schema([(name, _plain(kind)) for name, kind in kinds.items()])
        try:
            kept = pa.unify_schemas([kept, here], promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(
                f"the columns of {store.uri(file.name)} and {first} have no type in common: {error}"
            ) from error
        first = first or store.uri(file.name)
    return kept


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values: those of a file's categories need not be another's."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _check_kept(keeps: KeptColumns, columns: Collection[str], where: str) -> None:
    for name in keeps.names:
        if name not in columns:
            raise DataError(
                f"{where} has no column {name!r}, which the predictions shall have: it has "
                f"{', '.join(sorted(columns))}"
            )


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


def _read_part(
    found: Input, store: Store, file: InputFile, rows: range, forms: Forms
) -> tuple[Part, pa.Table | None]:
    """The rows, and those of a table with the columns as the predictions keep them."""
    if found.kind == "images":
        return image_of(read_whole(store, file), store.uri(file.name))[None], None
    if found.kind == "idx":
        return _idx(store.url, file).read(rows), None
    if found.kind == "text":
        asked = tuple(sorted(forms.items())), _kept_names(found.keeps)
        opened = _text_table(store.url, file, *asked)
        return opened.read(rows), opened.read_kept(rows)
    table = _parquet(store.url, file).read(rows)
    return table, table


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


@lru_cache(maxsize=2)
def _text_table(
    url: str, file: InputFile, forms: tuple[tuple[str, str], ...], kept: tuple[str, ...]
) -> TextRows:
    store = DataStore(url)
    data, uri = read_whole(store, file), store.uri(file.name)
    return _with_the_rows_of(file, store, TextRows(data, uri, dict(forms), kept))


def _with_the_rows_of(file: InputFile, store: Store, opened: _Opened) -> _Opened:
    """Raise DataError if it was replaced after its head was read and before its digest was made."""
    if opened.num_rows != file.rows:
        raise changed(store, file)
    return opened
