"""The journal's entries as points for a tracker, and how far a journal was sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Self

from train_core.policy.metric_names import is_counter
from train_core.storage.records.journal import Entry
from train_core.tracking.tracker import Point, Points

POSITION_TAG = "evertrain.mirrored"
"""The tag of the training that has the position."""


@dataclass(frozen=True, order=True)
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


class Counters:
    """The totals of the counters in a journal, whose entries have them as increases.

    In a tracker a counter grows: a point of its own for each increase would be a dot without a
    line. A counter begins with 0 at the journal's first step, and has one point a step at most.
    """

    def __init__(self) -> None:
        self.position = Position()
        """All entries before it are counted."""
        self._first: Entry | None = None
        self._totals: dict[str, float] = {}
        self._changed: set[str] = set()
        """The counters that have increased since their last point."""

    def count(self, entry: Entry, number: int) -> list[Point]:
        """Count an entry, the `number`th of its step, and give the points of the counters with it.

        An entry that was counted before is not counted again.
        """
        if (entry.step, number) < (self.position.step, self.position.entries):
            return []
        self.position = Position(entry.step, number + 1)
        first = self._first = self._first or entry
        begun = [name for name in entry.rates if is_counter(name) and name not in self._totals]
        for name, amount in entry.rates.items():
            if is_counter(name):
                self._totals[name] = self._totals.get(name, 0) + amount
                self._changed.add(name)
        zeros = dict.fromkeys(begun, 0.0) if entry.step > first.step else {}
        points = points_of(zeros, first.step, first.time)
        if number == 0:
            grown = {name: self._totals[name] for name in sorted(self._changed)}
            points += points_of(grown, entry.step, entry.time)
            self._changed.clear()
        return points


def points_after(
    entries: Iterable[Entry], after: Position, counters: Counters
) -> Iterator[tuple[Points, Position]]:
    """The points of each step after a position, with the position behind it.

    `entries` are in the journal's order, and have all entries of each step that they contain.
    `counters` count all of them, also those before `after`.
    """
    for step, of_step in groupby(entries, key=lambda entry: entry.step):
        found = list(of_step)
        known = len(found) if step < after.step else after.entries if step == after.step else 0
        points = []
        for number, entry in enumerate(found):
            counted = counters.count(entry, number)
            if number >= known:
                points += _of_entry(entry) + counted
        if points:
            position = Position(step, len(found))
            yield Points(points, {POSITION_TAG: str(position)}), position


def points_of(values: Mapping[str, float | None], step: int, time_s: float) -> list[Point]:
    """The values of one step as points."""
    return [Point(name, value, step, time_s) for name, value in values.items()]


def seconds(created_at: str) -> float:
    """An ISO 8601 time as seconds since 1970."""
    return datetime.fromisoformat(created_at).timestamp()


def _of_entry(entry: Entry) -> list[Point]:
    rates = {name: value for name, value in entry.rates.items() if not is_counter(name)}
    return points_of({**entry.metrics, **rates}, entry.step, entry.time)
