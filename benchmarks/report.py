"""What was measured: the table for people, the line of JSON for programs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


class Report:
    """Series of measurements by name, the figures made of them, and what has to be said.

    `keys` are the figures that the benchmark promises; one that is not measured stays null.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self.series: dict[str, list[float]] = defaultdict(list)
        self.figures: dict[str, Any] = dict.fromkeys(keys)
        self.notes: list[str] = []

    def add(self, name: str, *values: float) -> None:
        """Add measurements to a series; the name ends with the unit."""
        if not values:
            return
        self.series[name] += values
        shown = " ".join(f"{value:.4g}" for value in values)
        print(f"  {name}: {shown}", flush=True)

    def median(self, name: str) -> float:
        """Of a series."""
        return statistics.median(self.series[name])

    def p95(self, name: str) -> float:
        """95% of a series are no more than this."""
        return float(np.percentile(self.series[name], 95))

    def figure(self, name: str, value: float | list[float] | None) -> None:
        """Note a figure."""
        rounded = np.round(value, 4).tolist() if value is not None else None
        self.figures[name] = rounded
        print(f"  = {name}: {rounded}", flush=True)

    def note(self, text: str) -> None:
        """Note what a reader must know beside the numbers."""
        self.notes.append(text)
        print(f"  ! {text}", flush=True)

    def lines(self) -> Iterator[str]:
        """A line for each series: n, median, p95 and the spread; then the notes."""
        width = max((len(name) for name in self.series), default=0)
        yield f"{'':{width}} {'n':>4} {'median':>10} {'p95':>10} {'min':>10} {'max':>10}"
        for name, values in self.series.items():
            numbers = (self.median(name), self.p95(name), min(values), max(values))
            yield f"{name:{width}} {len(values):4} " + " ".join(f"{n:10.4g}" for n in numbers)
        yield from self.notes
