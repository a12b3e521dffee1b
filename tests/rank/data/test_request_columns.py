"""A request to a served model is read as a table with the same rows."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.datasets.arrays import is_null
from train_core.datasets.forms import forms_of
from train_core.datasets.tables import columns_of
from train_core.errors import DataError
from train_core.rank.data.request_columns import requested_columns

MIDDAY, NIGHT = datetime(2026, 9, 1, 12, 30), datetime(2026, 9, 2, 1, 0, 0, 250)
# What a column of training has, and spellings of its values in a request.
KINDS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "float": (pa.float32(), [1.5, -2.0], [1.5, -2.0]),
    "int": (pa.int16(), [3, 4], [3, 4]),
    "bool": (pa.bool_(), [True, False], [True, False]),
    "text": (pa.string(), ["a", ""], ["a", ""]),
    "time": (pa.timestamp("us"), [MIDDAY, NIGHT], [MIDDAY, NIGHT]),
    "time in text": (pa.timestamp("us"), [MIDDAY, NIGHT], ["2026-09-01T12:30", str(NIGHT)]),
    "day": (pa.date32(), [MIDDAY.date(), NIGHT.date()], [MIDDAY.date(), NIGHT.date()]),
    "day in text": (pa.date32(), [MIDDAY.date(), NIGHT.date()], ["2026-09-01", "2026-09-02"]),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.5"), Decimal("2")], [1.5, 2.0]),
    "list": (pa.list_(pa.int64()), [[1, 2], [3]], [[1, 2], [3]]),
    "bytes": (pa.binary(), [b"ab", b"c"], ["YWI=", "Yw=="]),
}


def same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray | list):
            return [plain(item) for item in value]
        return None if value is None or value != value else value  # noqa: PLR0124 (NaN is not itself)

    return [plain(value) for value in one.tolist()] == [plain(value) for value in other.tolist()]


@pytest.mark.promise("same-prepare")
@given(st.data())
def test_every_column_is_what_a_file_with_these_rows_gives(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(KINDS)))
    kind, values, spelled = KINDS[name]
    training = columns_of(pa.table({"x": pa.array([*values, *values], kind)}))
    if data.draw(st.booleans()):
        training = columns_of(pa.table({"x": pa.array([*values, None], kind)}))
    picked = data.draw(st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=5))
    file = pa.table({"x": pa.array([None if at is None else values[at] for at in picked], kind)})
    expected = columns_of(file, forms_of(training))["x"]
    request = [None if at is None else spelled[at] for at in picked]
    forms = forms_of(training)
    given_as = data.draw(st.sampled_from(["list", "objects", "pandas"]))
    column: Any = request
    if given_as == "objects":
        column = pd.Series(request, dtype=object)
    elif given_as == "pandas":
        column = pd.Series(request)
    found = requested_columns({"x": column}, forms)["x"]
    assert same(found, expected), (found, expected)
    if name not in ("decimal", "list", "bytes"):
        assert found.dtype == expected.dtype


def test_what_no_table_has_stays_as_it_is() -> None:
    images = np.empty(2, object)
    images[:] = [np.zeros((2, 2, 3)), np.zeros((3, 3, 3))]
    days = np.array([date(2026, 9, 1), None], object)
    found = requested_columns({"image": images, "day": days}, {"image": "lists", "day": "times"})
    assert found["image"][1].shape == (3, 3, 3)
    assert found["day"].tolist() == days.tolist()
    decimals = requested_columns({"x": [[1.5, 2.5], [1.0, 2.0]]}, {"x": "arrays of numbers"})
    assert decimals["x"].shape == (2, 2)


@pytest.mark.parametrize(
    ("data", "forms", "said"),
    [
        ({"x": [1, "a"]}, {}, "values of several kinds"),
        ({"x": [1, 2], "y": [1]}, {}, "have these lengths"),
        ({0: [1]}, {}, "a name of its own"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), {}, "a name of its own"),
        ({"x": [2**70]}, {}, "values of several kinds"),
        ({"x": ["?"]}, {"x": "bytes"}, "no base64"),
        ({"x": [1_789_000_000_000]}, {"x": "<M8[us]"}, "holds numbers, and held times"),
        ({"x": ["01/09/2026"]}, {"x": "<M8[us]"}, "write it as times"),
        ({"x": ["3000-01-01"]}, {"x": "<M8[ns]"}, "does not have: round them"),
        ({"x": ["false"]}, {"x": "|b1"}, "holds texts, and held booleans"),
        ({"x": [0.5]}, {"x": "|b1"}, "holds numbers, and held booleans"),
        ({"x": [2, 1]}, {"x": "|b1"}, "holds numbers, and held booleans"),
        ({"x": [True, False]}, {"x": "<f8"}, "holds booleans, and held numbers"),
        ({"x": [True, None]}, {"x": "numbers"}, "holds booleans, and held numbers"),
    ],
)
def test_what_no_file_could_have_is_refused(data: Any, forms: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        requested_columns(data, forms)


def test_booleans_may_be_written_as_0_and_1() -> None:
    columns = requested_columns({"x": [0, 1, 1], "y": [None, 1, 0]}, {"x": "|b1", "y": "booleans"})
    assert columns["x"].dtype == bool
    assert columns["x"].tolist() == [False, True, True]
    assert [None if is_null(value) else value for value in columns["y"]] == [None, 1, 0]
