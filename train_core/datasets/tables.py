"""Tables as raw columns: what Parquet, CSV and JSON lines hold, as numpy arrays by one rule.

Training and inference read by it. The rule goes by a column's type and its nulls; inference also
goes by the form that the column had in training, so that no batch depends on its own rows.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Collection, Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from train_core.datasets.faulty_files import naming
from train_core.datasets.files import DataFile, bytes_of
from train_core.datasets.forms import TEXTS, Array, Forms, form_within, is_ragged, like, objects
from train_core.errors import DataError
from train_core.policy.logins import hide_logins

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
        found[name] = like(_array(table[name], form), form, name)
    return found


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


def _array(column: pa.ChunkedArray, form: str = "") -> Array:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _array(column.cast(kind.storage_type), form)
    if pa.types.is_run_end_encoded(kind):
        return _array(pa.chunked_array(map(pc.run_end_decode, column.chunks), kind.value_type))
    if pa.types.is_dictionary(kind):
        # pyarrow's own conversion gives a null the first category.
        return _array(column.cast(kind.value_type))
    if _is_list(kind):
        return _lists(column, form)
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


def _lists(column: pa.ChunkedArray, form: str) -> Array:
    """Lists of one length as a further dimension; others, or those of the form, an array each."""
    lists = column.cast(pa.large_list(column.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    depth, kind = 0, lists.type.value_type
    while _is_list(kind):
        depth, kind = depth + 1, kind.value_type
    values = _array(pc.list_flatten(lists), form_within(form, depth))
    if not is_ragged(form) and not lists.null_count and len(set(lengths.tolist())) <= 1:
        fixed = pa.types.is_fixed_size_list(column.type)
        length = column.type.list_size if fixed else int(lengths[0]) if len(lengths) else 0
        return values.reshape(len(lengths), length, *values.shape[1:])
    ends = np.concatenate(([0], np.cumsum(lengths)))
    nulls = lists.is_null().to_numpy()
    return objects(
        None if null else values[start:stop]
        for null, (start, stop) in zip(nulls, pairwise(ends), strict=True)
    )


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
