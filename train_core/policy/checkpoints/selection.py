"""Which checkpoint is best: by the monitored metric, ties to the later step, NaN last."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Order = Literal["max", "min"]
_MOST_NAMED = 10


@dataclass(frozen=True)
class Candidate:
    """A checkpoint by name, with its step and its metrics on the validation split."""

    name: str
    step: int
    metrics: Mapping[str, float | None]
    created_at: datetime | None = None
    """When it was committed, if that matters and is known."""
    scheduled: bool = True
    """Whether it was due; one that was not is kept as the newest only."""


def score(value: float | None, order: Order) -> float:
    """`value` so that more is better; -inf for what is missing, null or NaN."""
    if value is None or math.isnan(value):
        return -math.inf
    return value if order == "max" else -value


def unmeasured(metric: str, found: Iterable[Mapping[str, object]]) -> str:
    """What to say where no checkpoint has the metric; empty if one has it, or none is named.

    `found` are the metrics of each checkpoint.
    """
    found = list(found)
    if metric and not found:
        return f"there is no checkpoint, so none is the best by {metric!r} (monitor)"
    names = {name for metrics in found for name in metrics}
    if not metric or metric in names:
        return ""
    known = ", ".join(sorted(names)[:_MOST_NAMED]) or "none"
    return (
        f"no checkpoint has the metric {metric!r} (monitor), so the newest counts as the best; "
        f"measured were: {known}"
    )


def ranked(candidates: Iterable[Candidate], metric: str, order: Order) -> list[Candidate]:
    """The candidates, best first."""
    return sorted(
        candidates, key=lambda c: (score(c.metrics.get(metric), order), c.step), reverse=True
    )
