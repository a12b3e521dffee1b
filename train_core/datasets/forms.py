"""What a column holds, in a word, and new data read by what training held.

A form is recorded of each column when a run begins. Later values get the type that they had then,
so that no batch depends on its own rows, and a column of another kind is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_core.datasets.arrays import ArrayDataset, is_null
from train_core.datasets.protocols import Columns, Dataset, Stream, fetch, is_stream
from train_core.errors import DataError

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


def form_within(form: str, depth: int) -> str:
    """The form of what the lists or arrays of a form hold, in which there are `depth` more levels.

    `arrays of ` is said once of all levels that are dimensions of one array.
    """
    if form.startswith(_ARRAYS):
        inner = form.removeprefix(_ARRAYS)
        return form if depth > inner.count(_ARRAYS) + inner.count(_LISTS) else inner
    return form.removeprefix(_LISTS) if form.startswith(_LISTS) else ""


def kind_of(form: str) -> str:
    """What a form holds, in a word: `int64` and `float32` are both numbers."""
    if form.startswith((_ARRAYS, _LISTS)):
        return LISTS
    if form in _WORDS or not form:
        return form
    kinds = {"b": _BOOLEANS, "M": "times", "m": "times"}
    return kinds.get(np.dtype(form).kind, NUMBERS)


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
