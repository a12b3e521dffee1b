"""The journal's entries as MLflow's metrics, and how far they were sent."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from mlflow.entities import Metric

from train_core.storage.records.journal import Entry

MAX_METRICS = 999
"""The server takes 1,000 things a request, and the position travels with the metrics."""
_MAX_KEY_LENGTH = 250
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True)
class Position:
    """How far a journal was sent: so many entries of a step, and all of those before it.

    A step has one entry, or two with its validation, which may come in another attempt.
    """

    step: int = -1
    entries: int = 0

    def __str__(self) -> str:
        return f"{self.step}+{self.entries}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position, or that of the beginning if `text` is not one."""
        match = re.fullmatch(r"(\d+)\+(\d+)", text)
        return cls(int(match[1]), int(match[2])) if match else cls()


def batches(
    entries: Iterable[Entry], after: Position
) -> Iterator[tuple[list[Metric], Position | None]]:
    """Metrics of as many steps as one request takes, and the position that they go to.

    The position is None where a single step is cut because it is larger than a request.
    """
    batch: list[Metric] = []
    position: Position | None = None
    for step, of_step in groupby(entries, key=lambda entry: entry.step):
        found = list(of_step)
        known = len(found) if step < after.step else after.entries if step == after.step else 0
        metrics = [metric for entry in found[known:] for metric in _of_entry(entry)]
        if not metrics:
            continue
        if batch and len(batch) + len(metrics) > MAX_METRICS:
            yield batch, position
            batch = []
        while len(metrics) > MAX_METRICS:
            yield metrics[:MAX_METRICS], None
            metrics = metrics[MAX_METRICS:]
        batch += metrics
        position = Position(step, len(found))
    if batch:
        yield batch, position


def metrics_of(
    values: Mapping[str, float | None], step: int, time_s: float, model_id: str | None = None
) -> list[Metric]:
    """Metrics of one step as MLflow takes them.

    Null is NaN: a gap would say that nothing was measured.
    """
    return [
        Metric(
            plain_key(key),
            math.nan if value is None else value,
            round(time_s * 1000),
            step,
            model_id,
        )
        for key, value in values.items()
    ]


def plain_key(key: str) -> str:
    """The name with `_` for what MLflow does not take."""
    return _NOT_IN_KEYS.sub("_", key)[:_MAX_KEY_LENGTH]


def _of_entry(entry: Entry) -> list[Metric]:
    return metrics_of({**entry.metrics, **entry.rates}, entry.step, entry.time)
