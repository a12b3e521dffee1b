"""The requests that send MLflow the journal's metrics, each with how far the journal was sent."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from itertools import groupby
from typing import Self

from mlflow.entities import Metric, RunTag

from train_core.engine.tracking.refusals import PassingClient
from train_core.policy.metric_names import is_counter
from train_core.storage.records.journal import Entry

MAX_METRICS = 999
"""MLflow accepts 1,000 entities a request, and the position is sent with the metrics."""
POSITION_TAG = "evertrain.mirrored"
"""The tag of the MLflow run that has the position."""
_MAX_KEY_LENGTH = 250
_DIGEST_CHARS = 16
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")
# A character that MLflow does not take, a part of a path that it does not, and what would read as
# an escaped character.
_ESCAPED = re.compile(
    r"[^\w\-. :/]|^\.\.|(?<![^/])\.{1,2}(?![^/])|(?<![^/])/|/(?=/|$)|_(?=x[0-9A-F]{4})"
)
Naming = Callable[[str], str]
"""How MLflow calls a metric or a parameter: `key_of`, or `earlier_key_of` in an earlier run."""


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

    In MLflow a counter grows: a point of its own for each increase would be a dot without a line.
    A counter begins with 0 at the journal's first step, and has one point a step at most.
    """

    def __init__(self, naming: Naming) -> None:
        self.naming = naming
        self.position = Position()
        """All entries before it are counted."""
        self._first: Entry | None = None
        self._totals: dict[str, float] = {}
        self._changed: set[str] = set()
        """The counters that have increased since their last point."""

    def count(self, entry: Entry, number: int) -> list[Metric]:
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
        points = metrics_of(zeros, first.step, first.time, naming=self.naming)
        if number == 0:
            grown = {name: self._totals[name] for name in sorted(self._changed)}
            points += metrics_of(grown, entry.step, entry.time, naming=self.naming)
            self._changed.clear()
        return points


def send_entries(
    client: PassingClient,
    run_id: str,
    entries: Iterable[Entry],
    after: Position,
    counters: Counters,
) -> Position:
    """Send an MLflow run the entries after a position, each request with its new position.

    `entries` are in the journal's order, and have all entries of each step that they contain.
    `counters` have counted what comes before them. The position in MLflow stays before the first
    request of which MLflow refused a part, so that `evertrain mirror` sends it again. Returns the
    position behind the last entry.
    """
    reached, is_whole = after, True
    for metrics, position in batches(entries, after, counters):
        tags = [RunTag(POSITION_TAG, str(position))] if is_whole and position else []
        is_whole = client.log_all(run_id, metrics, tags) and is_whole
        reached = position or reached
    return reached


def batches(
    entries: Iterable[Entry], after: Position, counters: Counters
) -> Iterator[tuple[list[Metric], Position | None]]:
    """The metrics of as many steps as fit into one request, and the position after them.

    The position is None where a single step is cut because it is larger than a request. `counters`
    count all entries, also those before `after`.
    """
    batch: list[Metric] = []
    position: Position | None = None
    for step, of_step in groupby(entries, key=lambda entry: entry.step):
        found = list(of_step)
        known = len(found) if step < after.step else after.entries if step == after.step else 0
        metrics = []
        for number, entry in enumerate(found):
            points = counters.count(entry, number)
            if number >= known:
                metrics += _of_entry(entry, counters.naming) + points
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


@dataclass(frozen=True)
class ModelLink:
    """The LoggedModel that metrics are of, and the dataset that they were measured on."""

    model_id: str
    dataset_name: str | None = None
    dataset_digest: str | None = None


def metrics_of(
    values: Mapping[str, float | None],
    step: int,
    time_s: float,
    link: ModelLink | None = None,
    *,
    naming: Naming,
) -> list[Metric]:
    """Metrics of one step in MLflow's form.

    Null becomes NaN: a gap would look as if the metric had not been measured. No model gets it, as
    MLflow's databases would give the model 0.
    """
    found = []
    for key, value in values.items():
        metric = (naming(key), math.nan if value is None else value, round(time_s * 1000), step)
        linked = astuple(link) if link and value is not None else ()
        found.append(Metric(*metric, *linked))
    return found


def key_of(name: str) -> str:
    """The name as MLflow accepts it: another for every other name.

    What MLflow does not take is escaped as in XML's names, `_x003C_` for `<`. Of a name that is too
    long the beginning is left, with a digest of all of it.
    """
    key = _ESCAPED.sub(lambda found: "".join(f"_x{ord(one):04X}_" for one in found[0]), name)
    if not key or len(key) > _MAX_KEY_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
        return f"{key[: _MAX_KEY_LENGTH - _DIGEST_CHARS - 1]}-{digest}".rstrip("/")
    return key


def earlier_key_of(name: str) -> str:
    """The name as in runs that an earlier version of evertrain began: `_` for other characters."""
    parts = _NOT_IN_KEYS.sub("_", name)[:_MAX_KEY_LENGTH].split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "_"


def _of_entry(entry: Entry, naming: Naming) -> list[Metric]:
    rates = {name: value for name, value in entry.rates.items() if not is_counter(name)}
    return metrics_of({**entry.metrics, **rates}, entry.step, entry.time, naming=naming)
