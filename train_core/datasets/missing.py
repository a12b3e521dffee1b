"""Values that stand for a missing one in raw columns."""

from __future__ import annotations

import numpy as np


def is_null(value: object) -> bool:
    """Whether it stands for a value that is missing: None, NaN, NaT, and pandas' words for them."""
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64):
        return bool(value != value)  # noqa: PLR0124 (so are NaN and NaT)
    # Of pandas, which need not be installed: NA and NaT.
    return value is None or type(value).__name__ in ("NAType", "NaTType")
