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
"""MLflow accepts 1,000 entities a request, and the position is sent with the metrics."""
_MAX_KEY_LENGTH = 250
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True)
class Position:
    """How far a journal was sent: all entries before a step, and a number of entries of that step.

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
    """The metrics of as many steps as fit into one request, and the position after them.

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
    """Metrics of one step in MLflow's form.

    Null becomes NaN: a gap would look as if the metric had not been measured.
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
    """The name as MLflow accepts it: `_` for other characters, and a path without empty parts."""
    parts = _NOT_IN_KEYS.sub("_", key)[:_MAX_KEY_LENGTH].split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "_"


def _of_entry(entry: Entry) -> list[Metric]:
    return metrics_of({**entry.metrics, **entry.rates}, entry.step, entry.time)
