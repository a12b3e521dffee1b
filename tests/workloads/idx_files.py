"""IDX files made for tests."""

from __future__ import annotations

import struct
from typing import Any

import numpy.typing as npt

from train_core.workloads.idx import _DTYPES


def format_idx(array: npt.NDArray[Any]) -> bytes:
    """The IDX file that holds `array`: what `parse_idx` reads."""
    big_endian = array.dtype.newbyteorder(">")
    (code,) = (code for code, dtype in _DTYPES.items() if dtype == big_endian)
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return header + array.astype(big_endian).tobytes()
