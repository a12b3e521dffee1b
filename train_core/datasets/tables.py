"""Tables as raw columns: what Parquet, CSV and JSON lines hold, as numpy arrays by one rule.

Training and inference read by it. The rule goes by a column's type and its nulls; inference also
goes by the form that the column had in training, so that no batch depends on its own rows.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Collection, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from train_core.datasets.arrays import ArrayDataset, is_null
from train_core.datasets.faulty_files import naming
from train_core.datasets.files import DataFile, bytes_of
from train_core.datasets.protocols import Columns, Dataset, Stream, fetch, is_stream
from train_core.errors import DataError
from train_core.policy.logins import hide_logins

Array = npt.NDArray[Any]
Forms = Mapping[str, str]
"""What each column is, by name: a numpy type, or of objects one of the words below.

With `arrays of ` before it if each row is an array of the same shape as the others, and `lists of `
if each is one of a length of its own; `lists` alone, of an earlier version, does not say of what.
"""

TEXTS, LISTS, NUMBERS, _BOOLEANS = "texts", "lists", "numbers", "booleans"
_ARRAYS, _LISTS = "arrays of ", "lists of "
_WORDS: Mapping[str, tuple[type, ...]] = {
    TEXTS: (str,),
    "bytes": (bytes,),
    _BOOLEANS: (bool, np.bool_),
    NUMBERS: (int, float, complex, Decimal, np.number),
    "times": (date, time, timedelta, np.datetime64, np.timedelta64),
    "mappings": (dict,),
    LISTS: (list, tuple, np.ndarray),
}
_SPELLED = "times (2026-09-01T02:17:40; with a zone 2026-09-01T02:17:40Z)"
_FEW = 4
"""Samples of a dataset that tell its columns: it may read a file for each."""
_EXACT = 2**53
"""Up to here a float64 has every integer."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".ndjson")
PACKED = ".gz"
PARQUET_SUFFIX = ".parquet"
TEXT_SUFFIXES = tuple(
    suffix + packed for suffix in (*_DELIMITERS, *_LINES) for packed in ("", PACKED)
)


def read_columns(
    files: Iterable[DataFile | str | os.PathLike[str]], texts: Iterable[str] = ()
) -> dict[str, Array]:
    """The rows of all files, one after the other, as arrays by column name.

    A file is Parquet, CSV, TSV or JSON lines, by its name. Give what `files()` of the workload
    gives, or paths. `texts` are columns of CSV files that are texts, whatever they look like: a
    postal code of digits would become a number. Raises DataError for a file that cannot be read,
    or has other columns than the first one.
    """
    texts = tuple(texts)
    tables = [_table_of(file, texts) for file in files]
    if not tables:
        raise DataError("read_columns was given no files")
    return columns_of(_joined(tables))


def columns_of(table: pa.Table, forms: Forms | None = None) -> dict[str, Array]:
    """The table's columns as arrays, by the rule of docs/workloads.md.

    `forms` are what the columns were in training: numbers get the type that they had there, and
    lists that had many lengths stay lists.
    """
    forms = forms or {}
    if len(set(table.column_names)) < len(table.column_names):
        twice = next(name for name in table.column_names if table.column_names.count(name) > 1)
        raise DataError(f"there are two columns {twice!r}: give each a name of its own")
    found = {}
    for name in table.column_names:
        form = forms.get(name, "")
        found[name] = like(_array(table[name], stays=is_ragged(form)), form, name)
    return found


def forms_of(columns: Columns) -> dict[str, str]:
    """The form of each column that has one: of objects, the first that is no null tells it."""
    found = {name: form_of(array) for name, array in columns.items()}
    return {name: form for name, form in found.items() if form}


def forms_in(dataset: Dataset | Stream) -> dict[str, str]:
    """The forms of a dataset's columns, which new data to score are read by; a stream has none."""
    if is_stream(dataset):
        return {}
    if isinstance(dataset, ArrayDataset):
        return forms_of(dataset.columns)
    return forms_of(fetch(dataset, np.arange(min(len(dataset), _FEW))))


def form_of(array: Array) -> str:
    """A numpy type, or of objects what they are; empty if nothing tells it."""
    if array.ndim > 1:
        return f"{_ARRAYS}{form_of(array.reshape(-1))}"
    if array.dtype.kind in "US":
        return TEXTS if array.dtype.kind == "U" else "bytes"
    if array.dtype.kind != "O":
        return array.dtype.str
    first = next((value for value in array.flat if not is_null(value)), None)
    word = next((word for word, types in _WORDS.items() if isinstance(first, types)), "")
    return _form_of_lists(array) if word == LISTS else word


def _form_of_lists(array: Array) -> str:
    """Of lists the form of the first of them that tells one."""
    lists = (np.asarray(value) for value in array.flat if isinstance(value, np.ndarray))
    inner = next((form for one in lists if one.size and (form := form_of(one))), "")
    return f"{_LISTS}{inner}" if inner else LISTS


def is_ragged(form: str) -> bool:
    """Whether the rows are lists, each of a length of its own."""
    return form == LISTS or form.startswith(_LISTS)


def kind_of(form: str) -> str:
    """What a form holds, in a word: `int64` and `float32` are both numbers."""
    if form.startswith((_ARRAYS, _LISTS)):
        return LISTS
    if form in _WORDS or not form:
        return form
    kinds = {"b": _BOOLEANS, "M": "times", "m": "times"}
    return kinds.get(np.dtype(form).kind, NUMBERS)


def read_text_table(data: bytes, name: str, forms: Forms | None = None) -> pa.Table:
    """The table in a CSV, TSV or JSON lines file.

    Columns whose form is `texts` are read as texts, whatever they look like; numbers in JSON stay
    numbers. A column of no form that has nothing but words for a missing value, as NA, has texts:
    Namibia's, perhaps.
    """
    forms = forms or {}
    texts = [column for column, form in forms.items() if form == TEXTS]
    name = name.lower()
    if name.endswith(PACKED):
        data = gzip.decompress(data)
    suffix = Path(name.removesuffix(PACKED)).suffix
    if suffix not in _DELIMITERS:
        return _read_lines(data, texts)
    table = _read_csv(data, _DELIMITERS[suffix], texts)
    nothing = [field.name for field in table.schema if pa.types.is_null(field.type)]
    if unknown := [column for column in nothing if not forms.get(column)]:
        known = _read_csv(data, _DELIMITERS[suffix], (*texts, *unknown))
        for column in unknown:
            if any(known[column].to_pylist()):
                at = table.column_names.index(column)
                table = table.set_column(at, column, known[column])
    return table


def has_no_types(name: str) -> bool:
    """Whether the file's format knows texts only, as CSV does."""
    return name.lower().removesuffix(PACKED).endswith(tuple(_DELIMITERS))


def _read_lines(data: bytes, texts: Collection[str]) -> pa.Table:
    if not data.strip():
        return pa.table({})
    options = pyarrow.json.ReadOptions(block_size=len(data))
    table = pyarrow.json.read_json(pa.BufferReader(data), read_options=options)
    # What looks like a time is made one.
    times = [
        (field.name, pa.string())
        for field in table.schema
        if field.name in texts and pa.types.is_temporal(field.type)
    ]
    if not times:
        return table
    parsing = pyarrow.json.ParseOptions(explicit_schema=pa.schema(times))
    return pyarrow.json.read_json(
        pa.BufferReader(data), read_options=options, parse_options=parsing
    )


def _read_csv(data: bytes, delimiter: str, texts: Iterable[str]) -> pa.Table:
    return pyarrow.csv.read_csv(
        pa.BufferReader(data),
        read_options=pyarrow.csv.ReadOptions(block_size=max(len(data), 1), use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={text: pa.string() for text in texts}
        ),
    )


def check_forms(columns: Columns, forms: Forms, where: str) -> None:
    """Raise DataError for a column that holds another kind of values than in training."""
    for name, form in forms_of(columns).items():
        here, there = kind_of(form), kind_of(forms.get(name, ""))
        if there and here != there and not _are_flags(columns[name], here, there):
            raise DataError(
                f"column {name!r} of {where} holds {here}, and held {there} in training: write it "
                f"as {_SPELLED if forms[name][1:2] == 'M' else there}"
            )
        here, there = _kind_in_lists(form), _kind_in_lists(forms.get(name, ""))
        if here and there and here != there:
            raise DataError(
                f"column {name!r} of {where} holds lists of {here}, and held lists of {there} in "
                "training: write them as those"
            )


def _kind_in_lists(form: str) -> str:
    """What the lists or arrays of a form hold; empty: they are none, or it is not known."""
    for before in (_ARRAYS, _LISTS):
        if form.startswith(before):
            return kind_of(form.removeprefix(before))
    return ""


def _are_flags(array: Array, here: str, there: str) -> bool:
    """Whether numbers are 0 and 1, as many programs write booleans."""
    if (here, there) != (NUMBERS, _BOOLEANS):
        return False
    if array.dtype.kind == "O":
        return all(is_null(value) or value in (0, 1) for value in array.flat)
    return bool(np.isin(array[~np.isnan(array)], (0, 1)).all())


def _array(column: pa.ChunkedArray, *, stays: bool = False) -> Array:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _array(column.cast(kind.storage_type), stays=stays)
    if pa.types.is_run_end_encoded(kind):
        return _array(pa.chunked_array(map(pc.run_end_decode, column.chunks), kind.value_type))
    if pa.types.is_dictionary(kind):
        # pyarrow's own conversion gives a null the first category.
        return _array(column.cast(kind.value_type))
    if _is_list(kind):
        return _lists(column, stays=stays)
    if pa.types.is_integer(kind) and column.null_count:
        least, most = pc.min_max(column).values()
        if (most.as_py() or 0) > _EXACT or (least.as_py() or 0) < -_EXACT:
            return objects(column.to_pylist())
    return np.asarray(column.to_numpy())


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def _lists(column: pa.ChunkedArray, *, stays: bool) -> Array:
    """Lists of one length as a further dimension; others, or if it stays so, an array for each."""
    lists = column.cast(pa.large_list(column.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    values = _array(pc.list_flatten(lists))
    if not stays and not lists.null_count and len(set(lengths.tolist())) <= 1:
        fixed = pa.types.is_fixed_size_list(column.type)
        length = column.type.list_size if fixed else int(lengths[0]) if len(lengths) else 0
        return values.reshape(len(lengths), length, *values.shape[1:])
    ends = np.concatenate(([0], np.cumsum(lengths)))
    nulls = lists.is_null().to_numpy()
    return objects(
        None if null else values[start:stop]
        for null, (start, stop) in zip(nulls, pairwise(ends), strict=True)
    )


def objects(values: Iterable[object]) -> Array:
    """The values as an array of objects, whatever they are."""
    listed = list(values)
    array = np.empty(len(listed), object)
    # One by one: numpy would make further dimensions of arrays of one length.
    for index, value in enumerate(listed):
        array[index] = value
    return array


def like(array: Array, form: str, name: str) -> Array:
    """The column with the type that it had in training, where that has all its values.

    Texts of a column that held times are read as times (ISO 8601; one with a zone as UTC). Raises
    DataError for times of a finer unit, which `prepare` would take for others.
    """
    if form == NUMBERS and array.dtype.kind == "f" and array.ndim == 1:
        # In training they were objects, decimals perhaps, and a missing one was None.
        return objects(None if is_null(one) else one for one in array.tolist())
    form = form.removeprefix(_ARRAYS)
    if not form or form in _WORDS:
        return array
    if form.startswith(_LISTS):
        return _lists_like(array, form.removeprefix(_LISTS), name)
    was = np.dtype(form)
    if was.kind == "M" and form_of(array) == TEXTS:
        array = _times(array)
    if array.dtype.kind == "O":
        if not all(is_null(value) for value in array.flat):
            return array
        # Nothing of the column is there: a type would be guessed by that.
        return np.full(array.shape, np.nan if was.kind in "iuf" else None, _with_nulls(was))
    if was.kind == "f" and array.dtype.kind in "iuf":
        return array.astype(was, copy=False)
    if (was.kind == array.dtype.kind and was.kind in "mM") or {was.kind, array.dtype.kind} <= {
        *"iub"
    }:
        found = array.astype(was, copy=False)
        # Back again: a comparison of two units goes beyond the range of the finer one.
        if ((found.astype(array.dtype) == array) | (array != array)).all():  # noqa: PLR0124 (NaT is not itself)
            return found
        if was.kind in "mM":
            raise DataError(
                f"column {name!r} has times in {array.dtype}, some of which {was}, its type in "
                "training, does not have: round them"
            )
    return array


def _lists_like(array: Array, form: str, name: str) -> Array:
    """The lists, each with the type that lists had in training."""
    if array.dtype.kind != "O":
        return array
    found = np.empty(array.shape, object)
    for place, value in np.ndenumerate(array):
        found[place] = like(value, form, name) if isinstance(value, np.ndarray) else value
    return found


def _times(texts: Array) -> Array:
    """The times that texts say; the texts if one of them says none."""
    column = pa.array(texts, pa.string(), from_pandas=True)
    for unit, zone in product(("us", "ns"), (None, "UTC")):
        try:
            return np.asarray(column.cast(pa.timestamp(unit, zone)).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            continue
    return texts


def _with_nulls(was: np.dtype[Any]) -> np.dtype[Any]:
    """The type of a column that had `was`, with missing values."""
    if was.kind in "fmM":
        return was
    return np.dtype(np.float64 if was.kind in "iu" else object)


def _table_of(
    file: DataFile | str | os.PathLike[str], texts: tuple[str, ...]
) -> tuple[str, pa.Table]:
    """The file's address, and its table."""
    name, data = bytes_of(file)
    if not name.lower().endswith((PARQUET_SUFFIX, *TEXT_SUFFIXES)):
        raise DataError(
            f"{hide_logins(name)} is no table that read_columns knows: it reads "
            f"*{PARQUET_SUFFIX}, *{', *'.join(TEXT_SUFFIXES)}"
        )
    with naming(name, "table"):
        if name.lower().endswith(PARQUET_SUFFIX):
            return name, pq.read_table(pa.BufferReader(data))
        return name, read_text_table(data, name, dict.fromkeys(texts, TEXTS))


def _joined(tables: list[tuple[str, pa.Table]]) -> pa.Table:
    """The rows of all tables. Raises DataError for one that has not the columns of the first."""
    (first, head), *rest = tables
    for name, table in rest:
        mine, usual = set(table.column_names), set(head.column_names)
        if mine != usual:
            lacks, more = sorted(usual - mine), sorted(mine - usual)
            how = f"has no column {lacks[0]!r}" if lacks else f"has a column {more[0]!r}"
            raise DataError(
                f"{hide_logins(name)} is not like {hide_logins(first)}: it {how}. "
                "Bring the files to one schema"
            )
        for column in head.column_names:
            pair = [pa.schema([(column, one.schema.field(column).type)]) for one in (head, table)]
            try:
                pa.unify_schemas(pair, promote_options="permissive")
            except pa.ArrowException as error:
                raise DataError(
                    f"{hide_logins(name)} is not like {hide_logins(first)}: its column {column!r} "
                    f"is {pair[1].field(0).type}, and {pair[0].field(0).type} there. "
                    "Bring the files to one schema"
                ) from error
    return pa.concat_tables(
        [table.select(head.column_names) for _, table in tables], promote_options="permissive"
    )
