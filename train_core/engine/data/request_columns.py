"""A request to a served model as raw columns, by the reader of batch inference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_core.datasets.tables import Forms, check_forms, columns_of, like
from train_core.engine.data.raw_columns import RawColumns
from train_core.errors import DataError

THE_REQUEST = "the request"


def requested_columns(
    data: Mapping[str, Any], forms: Forms, targets: Collection[str] = ()
) -> RawColumns:
    """The columns of a DataFrame, or of arrays by name, as files to score would give them.

    `forms` are what the columns were in training; what the targets are is not looked at. Raises
    DataError for a column that holds another kind of values.
    """
    forms = {name: form for name, form in forms.items() if name not in targets}
    arrays: dict[str, npt.NDArray[Any]] = {}
    listed: dict[str, pa.Array] = {}
    for name in data:
        values = data[name]
        array = _one_array(values)
        if array is not None and array.ndim > 1:
            arrays[name] = array
        else:
            listed[name] = _arrow(values, name)
    columns = columns_of(pa.table(listed), forms)
    for name, array in arrays.items():
        columns[name] = like(array, forms.get(name, ""), name)
    check_forms(columns, forms, THE_REQUEST)
    return RawColumns({name: columns[name] for name in data}, {THE_REQUEST: list(data)})


def _one_array(values: Any) -> npt.NDArray[Any] | None:
    """The array that the values are, or that lists of one shape make, as JSON has an image."""
    if isinstance(values, np.ndarray):
        return values
    if not (isinstance(values, list) and values and isinstance(values[0], list)):
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" else None


def _arrow(values: Any, name: str) -> pa.Array:
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"column {name!r} of {THE_REQUEST} holds values of several kinds ({error}): send "
            "values of one kind, and null where one is missing"
        ) from error
