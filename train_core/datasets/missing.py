"""What is missing: values in raw columns, and predictions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor


def is_null(value: object) -> bool:
    """Whether it stands for a value that is missing: None, NaN, NaT, and pandas' words for them."""
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64):
        return bool(value != value)  # noqa: PLR0124 (so are NaN and NaT)
    # Of pandas, which need not be installed: NA and NaT.
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def rows_without_prediction(predictions: Mapping[str, Tensor]) -> npt.NDArray[np.bool_]:
    """Which rows have NaN in a prediction: what else was computed of them is worth nothing.

    A classifier's `argmax` of NaN is class 0.
    """
    found = np.zeros(len(next(iter(predictions.values()))), bool)
    for tensor in predictions.values():
        if tensor.is_floating_point() and len(tensor) == len(found):
            found |= tensor.isnan().reshape(len(found), -1).any(1).cpu().numpy()
    return found
