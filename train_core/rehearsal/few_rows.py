"""A few rows of the validation split: how they are prepared, and when two results are one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from traceback import format_exception
from typing import Any

import numpy as np
import torch
from torch import nn

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset, fetch
from train_core.errors import line_of_users_code, words_of
from train_core.rank.data.batches import prepare, to_device
from train_core.workload import (
    Batch,
    Workload,
)

NUM_ROWS = 15
"""Odd: parts of one length hide what depends on their lengths."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far, relative to the largest value, rounding alone may move a result."""
_FAR = 4.0


def tolerance_of(config: TrainConfig) -> float:
    """How far rounding may move a number that is computed in the configuration's precision."""
    return TOLERANCES[torch.bfloat16 if config.precision == "bf16" else torch.float32]


def device_of(model: nn.Module) -> torch.device:
    """Where the model computes; a model without parameters and buffers computes on the CPU."""
    held = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if held is None else held.device


def batch_of(
    workload: Workload[Any], model: nn.Module, rows: Dataset, config: TrainConfig
) -> Batch:
    """All rows as the model is given them, with their targets, not augmented."""
    indices = np.arange(len(rows))
    batch = prepare(workload, fetch(rows, indices), None, indices)
    return to_device(batch, device_of(model), channels_last=config.channels_last)


@contextmanager
def with_other_weights(model: nn.Module) -> Iterator[None]:
    """Far from 0 and of the other sign: what are no probabilities soon leave 0 to 1."""
    weights = [p for p in model.parameters() if p.is_floating_point()]
    kept = [p.clone() for p in weights]
    try:
        for p in weights:
            p.mul_(-_FAR)
        yield
    finally:
        for p, value in zip(weights, kept, strict=True):
            p.copy_(value)


def is_close(one: float | str, other: float | str, tolerance: float) -> bool:
    """Whether two values are one up to rounding; texts say why there is no value."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str)
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-6)


def raised(error: Exception) -> str:
    """An error of a user's code in words, with its line."""
    line = line_of_users_code("".join(format_exception(error)))
    return f"{words_of(error)} ({line})" if line else words_of(error)
