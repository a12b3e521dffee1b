"""A request to a served model as raw columns: what a file with the same rows would give."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from train_core.datasets.arrays import is_null
from train_core.datasets.forms import (
    LISTS,
    NUMBERS,
    TEXTS,
    Forms,
    check_forms,
    form_of,
    is_ragged,
    kind_of,
    like,
    objects,
)
from train_core.datasets.tables import (
    columns_of,
)
from train_core.errors import DataError
from train_core.rank.data.raw_columns import RawColumns

Array = npt.NDArray[Any]

_THE_REQUEST = "the request"
_FIXED = "biufcmM"
"""The kinds of numpy's types whose arrays have no objects and no texts."""


def requested_columns(
    data: Mapping[str, Any], forms: Forms, targets: Collection[str] = ()
) -> RawColumns:
    """The columns of a DataFrame, or of arrays or lists by name.

    `forms` are what the columns were in training; what the targets are is not looked at. Raises
    DataError for names that are no texts, for columns of other lengths than the first, and for one
    that holds another kind of values than in training.
    """
    names = list(data)
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{_THE_REQUEST} has columns {names}: give each a name of its own, a text")
    known = {name: form for name, form in forms.items() if name not in targets}
    columns = {}
    for name in names:
        form = known.get(name, "")
        try:
            columns[name] = like(_array(data[name], form, name), form, name)
        except (pa.ArrowException, OverflowError) as error:
            raise _mixed(name, error) from error
    lengths = {name: len(array) for name, array in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns of {_THE_REQUEST} have these lengths: {lengths}")
    check_forms(columns, known, _THE_REQUEST)
    return RawColumns(columns, {_THE_REQUEST: names})


def _array(values: Any, form: str, name: str) -> Array:
    """The values as an array, as a table's reader gives them."""
    if isinstance(values, pd.Series):
        # Times with a zone, categories and pandas' own types become objects.
        is_fixed = isinstance(values.dtype, np.dtype) and values.dtype.kind in _FIXED
        array = np.asarray(values) if is_fixed else objects(values)
    elif isinstance(values, list):
        one = None if is_ragged(form) else _one_array(values)
        array = objects(values) if one is None else one
    else:
        array = np.asarray(values)
    if array.dtype.kind == "U":
        array = array.astype(object)
    return _of_objects(array, form, name) if array.dtype.kind == "O" else array


def _one_array(values: list[Any]) -> Array | None:
    """The array that lists of one shape make, as JSON has images; None: they make none."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "biuf" else None


def _of_objects(array: Array, form: str, name: str) -> Array:
    if array.ndim != 1:
        return array
    array = objects(None if is_null(one) else one for one in array)
    forms = (form_of(array[at : at + 1]) for at, one in enumerate(array) if one is not None)
    kinds = {kind_of(one) for one in forms}
    if len(kinds) > 1:
        raise _mixed(name, " and ".join(sorted(kinds)))
    kind = "".join(kinds)
    if kind == TEXTS and form == "bytes":
        return objects(None if one is None else _decoded(one, name) for one in array)
    there = [one for one in array if one is not None]
    is_table = (
        (kind == "booleans" and len(there) == len(array))
        or (kind == NUMBERS and all(isinstance(one, int | float | np.number) for one in there))
        or (kind == LISTS and all(np.ndim(one) == 1 for one in there if hasattr(one, "ndim")))
        # A dataset of one's own may have dates and times as objects, too.
        or (kind == "times" and form[1:2] in ("m", "M"))
    )
    if not is_table:
        return array
    return columns_of(pa.table({name: pa.array(array, from_pandas=True)}), {name: form})[name]


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise DataError(
            f"column {name!r} of {_THE_REQUEST} holds texts that are no base64: in training it "
            "held bytes"
        ) from error


def _mixed(name: str, why: object) -> DataError:
    return DataError(
        f"column {name!r} of {_THE_REQUEST} holds values of several kinds ({why}): send values of "
        "one kind, and null where one is missing"
    )
