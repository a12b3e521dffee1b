"""The names of metrics: `<split>/<name>` in the journal, in `monitor` and in MLflow.

Within the results of one split, as in an evaluation's manifest, a metric has its short name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

TRAIN, VALIDATION, TEST = "train", "validation", "test"
LOSS = "loss"
BEST = "best"
"""MLflow has the best checkpoint's metrics under it, as `best/validation/accuracy`."""

TRAIN_LOSS = f"{TRAIN}/{LOSS}"
EPOCH_LOSS = f"{TRAIN}/epoch_loss"
LEARNING_RATE = f"{TRAIN}/learning_rate"
GRAD_NORM = f"{TRAIN}/grad_norm"
SAMPLES_PER_S = f"{TRAIN}/samples_per_s"
VALIDATION_LOSS = f"{VALIDATION}/{LOSS}"
VALIDATION_ACCURACY = f"{VALIDATION}/accuracy"

COUNTERS = "checkpoint"
CHECKPOINT_BLOCKED_S = "checkpoint/blocked_s"
CHECKPOINT_WAITED = "checkpoint/waited"
CHECKPOINT_WAITED_S = "checkpoint/waited_s"
CHECKPOINT_FAILED = "checkpoint/failed"
CHECKPOINT_QUARANTINED = "checkpoint/quarantined"
CHECKPOINT_SKIPPED = "checkpoint/skipped"

_PREFIXES = (TRAIN, VALIDATION, TEST, COUNTERS)

_Value = TypeVar("_Value")


def full_name(split: str, name: str) -> str:
    """The name of a split's metric among those of all splits."""
    return f"{split}/{name}"


def short_name(split: str, name: str) -> str:
    """The metric's name without its split's prefix, which it need not have."""
    return name.removeprefix(f"{split}/")


def is_of(split: str, name: str) -> bool:
    """Whether a full name is that of a metric of the split."""
    return name.startswith(f"{split}/")


def is_counter(name: str) -> bool:
    """Whether a rate is a counter: the journal has its increases, each in the next entry."""
    return is_of(COUNTERS, name)


def split_and_name(name: str) -> tuple[str, str]:
    """The parts of a full name; the split is empty if it has none, as `iou/car` has none."""
    split, slash, short = name.partition("/")
    return (split, short) if slash and split in _PREFIXES else ("", name)


def full_names(split: str, metrics: Mapping[str, _Value]) -> dict[str, _Value]:
    """A split's metrics by their full names; a name that is full already stays."""
    return {full_name(split, short_name(split, name)): value for name, value in metrics.items()}


def short_names(split: str, metrics: Mapping[str, _Value]) -> dict[str, _Value]:
    """A split's metrics by their short names; a name that is short already stays."""
    return {short_name(split, name): value for name, value in metrics.items()}


def only(split: str, metrics: Mapping[str, _Value]) -> dict[str, _Value]:
    """Of metrics by their full names, those of the split."""
    return {name: value for name, value in metrics.items() if is_of(split, name)}


def is_validation(metrics: Iterable[str]) -> bool:
    """Whether a step with metrics of these names was validated."""
    return any(is_of(VALIDATION, name) for name in metrics)
