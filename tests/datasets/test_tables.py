"""Tables as columns: each value is the table's own, whatever its type and wherever nulls are."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given

from train_core import ArrayDataset, read_columns
from train_core.datasets.forms import check_forms, form_of, forms_of, is_ragged, objects
from train_core.datasets.tables import columns_of, read_text_table
from train_core.errors import DataError

SIMPLE: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=4)),
    "large_string": (pa.large_string(), st.text(max_size=4)),
    "string_view": (pa.string_view(), st.text(max_size=4)),
    "category": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", ""])),
    "category of numbers": (pa.dictionary(pa.int8(), pa.int64()), st.integers(0, 3)),
    "binary": (pa.binary(), st.binary(max_size=4)),
    "binary of one length": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))),
    "time": (pa.time64("us"), st.times()),
    "duration": (
        pa.duration("us"),
        st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    ),
    "decimal": (pa.decimal128(12, 3), st.decimals(-(10**8), 10**8, places=3)),
    "null": (pa.null(), st.none()),
    "struct": (pa.struct([("a", pa.int64())]), st.fixed_dictionaries({"a": st.integers(0, 9)})),
}
INNER = ("int64", "string", "category", "date", "float32", "bool")


@st.composite
def columns(draw: st.DrawFn) -> pa.ChunkedArray:
    """A column of some chunks, of any type, with nulls or without."""
    kind, values = SIMPLE[draw(st.sampled_from(sorted(SIMPLE)))]
    for _ in range(draw(st.integers(0, 2)) if kind in [SIMPLE[one][0] for one in INNER] else 0):
        if draw(st.booleans()):
            values = st.lists(values, min_size=2, max_size=2)
            kind = draw(st.sampled_from([pa.list_(kind), pa.list_(kind, 2)]))
        else:
            values = st.lists(values | st.none() if draw(st.booleans()) else values, max_size=3)
            kind = draw(st.sampled_from([pa.list_(kind), pa.large_list(kind)]))
    if draw(st.booleans()):
        values = values | st.none()
    chunks = draw(st.lists(st.lists(values, max_size=4), min_size=1, max_size=3))
    return pa.chunked_array([pa.array(chunk, kind) for chunk in chunks], kind)


def plain(value: Any) -> Any:
    """A value as the table's own conversion to Python gives it; None for what is missing."""
    if isinstance(value, np.ndarray):
        return [plain(one) for one in value]
    if isinstance(value, np.datetime64 | np.timedelta64):
        return None if np.isnat(value) else value.item()
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


@pytest.mark.promise("any-column")
@given(columns())
@example(pa.chunked_array([pa.array(["a", None]).dictionary_encode()]))
@example(pa.chunked_array([pa.array([2**60 + 1, None])]))
@example(pa.chunked_array([pa.array([[1], None, [2, 3]])]))
def test_every_value_is_the_tables_own(column: pa.ChunkedArray) -> None:
    (array,) = columns_of(pa.table({"x": column})).values()
    assert [plain(value) for value in array] == [
        value.as_py() if value.is_valid else None for value in column
    ]


@pytest.mark.promise("any-column")
@pytest.mark.parametrize(
    "rows",
    [
        [[], [[1]], [[1, 2], [3, 4]], [[], [1]], None],
        [[[[1]], []], [[[1], [2]]], [[[3, 4]], [[]], [[5]]], []],
        [[[[1], [2, 3]], [[4], [5]]], [[[6], [7]], [[], []]]],
    ],
)
def test_a_row_of_lists_of_lists_is_alone_what_it_is_beside_others(rows: list[Any]) -> None:
    table = pa.table({"x": rows})
    whole = columns_of(table)
    forms = forms_of(whole)
    for number, beside_others in enumerate(whole["x"]):
        (alone,) = columns_of(table.slice(number, 1), forms)["x"]
        assert structure(alone) == structure(beside_others)


def structure(value: Any) -> Any:
    """The type and the shape of each array in an array."""
    if not isinstance(value, np.ndarray):
        return type(value)
    return value.dtype, value.shape, list(map(structure, value))


@pytest.mark.promise("any-column")
@given(columns(), st.data())
def test_rows_have_the_same_values_whatever_they_are_read_with(
    column: pa.ChunkedArray, data: st.DataObject
) -> None:
    """By the form of the whole column: as an array of the same type, and of the same dimensions."""
    table = pa.table({"x": column})
    whole = columns_of(table)["x"]
    forms = forms_of({"x": whole})
    start = data.draw(st.integers(0, len(column)))
    stop = data.draw(st.integers(start, len(column)))
    part = columns_of(table.slice(start, stop - start), forms)["x"]
    assert [plain(value) for value in part] == [plain(value) for value in whole[start:stop]]
    if start < stop and whole.dtype.kind != "O":
        assert part.dtype == whole.dtype
        assert part.shape[1:] == whole.shape[1:]
    if is_ragged(forms.get("x", "")):
        assert part.ndim == 1
        types = [getattr(value, "dtype", None) for value in whole[start:stop]]
        assert [getattr(value, "dtype", None) for value in part] == types


ROWS = {"zip": ["01067", "", "99"], "age": [31, None, 7], "when": ["2026-01-02", "2026-03-04", ""]}
CSV = "zip,age,when\n01067,31,2026-01-02\n,,2026-03-04\n99,7,\n"
LINES = (
    '{"zip": "01067", "age": 31, "when": "2026-01-02"}\n'
    '{"zip": "", "age": null, "when": "2026-03-04"}\n'
    '{"zip": "99", "age": 7, "when": null}\n'
)


def wrote(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("a.csv", CSV), ("a.csv.gz", CSV), ("a.tsv", CSV.replace(",", "\t"))),
        *(("a.jsonl", LINES), ("a.NDJSON", LINES), ("a.jsonl.gz", LINES)),
    ],
)
def test_text_tables_are_read_as_what_training_had(name: str, text: str, tmp_path: Path) -> None:
    file = wrote(tmp_path / name, text)
    table = read_text_table(file.read_bytes(), name, {"zip": "texts"})
    found = columns_of(table, {"zip": "texts", "age": "<f4", "when": "<M8[D]"})
    assert found["zip"].tolist() == ROWS["zip"]
    assert found["age"].dtype == np.float32
    assert [plain(one) for one in found["age"]] == ROWS["age"]


def test_a_word_for_a_missing_value_is_a_text_where_texts_are(tmp_path: Path) -> None:
    """Whatever the other rows of its file are: NA is Namibia, too."""
    germany = wrote(tmp_path / "a.csv", "country,n,nothing\nDE,1,\nNA,2,\n")
    namibia = wrote(tmp_path / "b.csv", "country,n,nothing\nNA,NA,\nNA,4,\n")
    found = read_columns([germany, namibia])
    assert found["country"].tolist() == ["DE", "NA", "NA", "NA"]
    assert [plain(one) for one in found["n"]] == [1, 2, None, 4]
    assert found["nothing"].tolist() == [None] * 4


def test_columns_that_are_texts_keep_their_zeros(tmp_path: Path) -> None:
    file = wrote(tmp_path / "a.csv", "zip,n\n01067,1\n")
    assert read_columns([file], texts=["zip"])["zip"].tolist() == ["01067"]


def test_a_csv_of_many_blocks_has_one_type_for_a_column(tmp_path: Path) -> None:
    """pyarrow guesses by the first megabyte, and fails where a later value is another kind."""
    rows = 400_000
    text = "a\n" + "1\n" * rows + "1.5\n"
    found = read_columns([wrote(tmp_path / "a.csv", text)])["a"]
    assert found.dtype == np.float64
    assert found.sum() == rows + 1.5


def test_files_of_one_schema_are_joined_in_their_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2], "s": ["a", None]}), tmp_path / "a.parquet")
    nothing = pa.table({"s": pa.array([None], pa.null()), "x": [0.5]})
    pq.write_table(nothing, tmp_path / "b.parquet")
    found = read_columns([tmp_path / "a.parquet", str(tmp_path / "b.parquet")])
    assert found["x"].tolist() == [1, 2, 0.5]
    assert found["s"].tolist() == ["a", None, None]


@pytest.mark.parametrize(
    ("columns", "how"),
    [
        ({"x": [1]}, "has no column 's'"),
        ({"x": [1], "s": ["a"], "t": [1]}, "has a column 't'"),
        ({"x": ["one"], "s": ["a"]}, "its column 'x' is string, and int64 there"),
    ],
)
def test_a_file_of_another_schema_is_named(
    columns: dict[str, Any], how: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"x": [1, 2], "s": ["a", None]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=f"b.parquet is not like .*a.parquet: .*{how}"):
        read_columns([tmp_path / "a.parquet", tmp_path / "b.parquet"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"a,b\n1\n", "Expected 2 columns, got 1"),
        ("a.jsonl", b'{"a": 1', "a.jsonl is not a readable table"),
        ("a.parquet", b"PAR1", "a.parquet is not a readable table"),
        ("a.xlsx", b"", r"a.xlsx is no table that read_columns knows.*\*.parquet, \*.csv"),
    ],
)
def test_what_is_no_table_is_named(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_columns([tmp_path / name])


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["a", None], "texts"),
        ([None, b"a"], "bytes"),
        ([True, None], "booleans"),
        ([Decimal("1.5")], "numbers"),
        ([time(1), None], "times"),
        ([date(2026, 1, 1)], "times"),
        ([float("nan"), "a"], "texts"),
        ([np.zeros(3), None], "lists of <f8"),
        ([None, np.zeros(0), np.array(["a", None], object)], "lists of texts"),
        ([np.zeros(0)], "lists"),
        ([{"a": 1}], "mappings"),
        ([None, float("nan")], ""),
    ],
)
def test_objects_are_known_by_the_first_that_is_there(values: Sequence[Any], form: str) -> None:
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    assert form_of(array) == form


@pytest.mark.promise("any-column")
def test_columns_of_every_type_make_a_dataset_with_a_digest_of_its_values(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 27, 6, tzinfo=UTC)
    table = pa.table(
        {
            "text": ["a", None],
            "kind": pa.array(["x", None]).dictionary_encode(),
            "when": pa.array([moment, None], pa.timestamp("us", "Europe/Berlin")),
            "day": pa.array([date(2026, 1, 1), None]),
            "price": pa.array([Decimal("1.50"), None]),
            "is_new": pa.array([True, None]),
            "tokens": pa.array([[1, 2, 3], [4]]),
            "raw": pa.array([b"\0", None]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    found = ArrayDataset(**read_columns([tmp_path / "a.parquet"]))
    # A zone is no part of a time: it is given in UTC.
    assert found.columns["when"][0] == np.datetime64("2026-11-27T06:00:00")
    again = ArrayDataset(**read_columns([tmp_path / "a.parquet"]))
    assert found.digest() == again.digest()
    changed = table.set_column(6, "tokens", pa.array([[1, 2, 3], [5]]))
    assert ArrayDataset(**columns_of(changed)).digest() != found.digest()


@pytest.mark.promise("any-column")
def test_the_elements_of_lists_are_what_they_were_in_training_or_refused() -> None:
    forms = forms_of({"x": objects([np.array([1.0, 2.0]), np.zeros(1)])})
    for missing in ([None], [float("nan")]):
        (alone,) = columns_of(pa.table({"x": [missing]}), forms)["x"]
        assert alone.dtype == np.float64
        assert np.isnan(alone).all()
    for other, said in (
        ([["a"]], "lists of texts, and held lists of numbers"),
        ([[True]], "lists of booleans, and held lists of numbers"),
        ([[[1.0], [2.0]]], "lists of lists, and held lists of numbers"),
    ):
        with pytest.raises(DataError, match=said):
            check_forms(columns_of(pa.table({"x": other}), forms), forms, "new data")
    # As an earlier version recorded it.
    check_forms({"x": objects([np.array(["a"], object)])}, {"x": "lists"}, "new data")
