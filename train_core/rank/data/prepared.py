"""Raw columns as a batch: the one way to it in training, evaluation, inference and serving."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train_core.datasets.protocols import Columns
from train_core.errors import DataError, WorkloadError
from train_core.policy.samples.randomness import SampleRandom
from train_core.workload import Batch, Workload

_NAN_AS_INTEGER = "invalid value encountered in cast"
CACHE_LINE = 64


def prepare_batch(
    workload: Workload[Any],
    columns: Columns,
    random: SampleRandom | None,
    named: Callable[[int], str] = "row {}".format,
) -> Batch:
    """What the workload's `prepare` makes of raw columns.

    Each tensor lies as torch lays it out. Raises DataError where a number or a time that is missing
    becomes an integer: numpy only warns of it, and torch makes the least integer of it without a
    word. `named` gives the name of a row.
    """
    # In an image or a series NaN is a value like others.
    missing = {
        name: rows
        for name, array in columns.items()
        if array.dtype.kind in "fmM" and array.ndim == 1 and (rows := np.isnan(array)).any()
    }
    if not missing:
        return _laid_out(workload, workload.prepare(columns, random))
    # Not for each batch: Python tells each warning again after this.
    with warnings.catch_warnings():
        warnings.filterwarnings("error", _NAN_AS_INTEGER, RuntimeWarning)
        try:
            batch = workload.prepare(columns, random)
        except RuntimeWarning as warning:
            if _NAN_AS_INTEGER not in str(warning):
                raise
            raise _missing_as_integer(missing, named) from warning
    for tensor in filter(torch.is_tensor, batch.values()):
        for name, rows in missing.items():
            if _has_least_integer(tensor, rows):
                raise _missing_as_integer({name: rows}, named)
    return _laid_out(workload, batch)


def _laid_out(workload: Workload[Any], batch: Batch) -> Batch:
    """The batch with each tensor at the beginning of a cache line, and without gaps.

    BLAS rounds by where a matrix begins, and numpy's arrays begin at any 16 bytes: the same numbers
    would give other bits in another process. Raises WorkloadError for what is none.
    """
    for name, tensor in batch.items():
        # Packed sequences go to a device, too.
        if not hasattr(tensor, "to"):
            raise WorkloadError(
                f"prepare() of {type(workload).__name__} gives a {type(tensor).__name__} as "
                f"{name!r}: give tensors (torch.from_numpy, torch.tensor)"
            )
    return {
        name: _own(tensor) if _is_elsewhere(tensor) else tensor for name, tensor in batch.items()
    }


def _is_elsewhere(tensor: Tensor) -> bool:
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_nested:
        return False
    if tensor.data_ptr() % CACHE_LINE != 0:
        return True
    return not tensor.is_contiguous() and _dense_strides(tensor) != tensor.stride()


def _own(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor).copy_(tensor)


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Those that a copy has: the same unless there are gaps or overlaps."""
    return torch.empty_like(tensor, device="meta").stride()


def _has_least_integer(tensor: Tensor, rows: npt.NDArray[np.bool_]) -> bool:
    is_integer = not (tensor.is_floating_point() or tensor.is_complex()) and (
        tensor.dtype in (torch.int32, torch.int64)
    )
    if not is_integer or len(tensor) != len(rows):
        return False
    least = torch.iinfo(tensor.dtype).min
    return bool((tensor[torch.from_numpy(rows).to(tensor.device)] == least).any())


def _missing_as_integer(
    missing: Mapping[str, npt.NDArray[np.bool_]], named: Callable[[int], str]
) -> DataError:
    name, rows = next(iter(missing.items()))
    return DataError(
        "prepare makes an integer of a value that is missing, which may become any number (column "
        f"{name!r} of {named(int(rows.argmax()))}): fill missing values first"
    )


def rows_without_prediction(predictions: Mapping[str, Tensor]) -> npt.NDArray[np.bool_]:
    """Which rows have NaN in a prediction: what else was computed of them is worth nothing.

    A classifier's `argmax` of NaN is class 0.
    """
    found = np.zeros(len(next(iter(predictions.values()))), bool)
    for tensor in predictions.values():
        if tensor.is_floating_point() and len(tensor) == len(found):
            found |= tensor.isnan().reshape(len(found), -1).any(1).cpu().numpy()
    return found
