"""The gate's decision: whether a challenger becomes champion. Pure: nothing is measured here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.checkpoints.selection import Order


class Outcome(StrEnum):
    """What is to become of a challenger."""

    PROMOTE = "promote"
    """It becomes champion."""
    KEEP = "keep"
    """The champion stays."""
    ASK = "ask"
    """A person decides."""


@dataclass(frozen=True)
class Score:
    """What was measured of one model on the rows of the gate."""

    metric: float | None
    """The metric that decides; None where it is not finite."""
    recalls: dict[str, float | None] = field(default_factory=dict)
    """The recall of each class; empty for a model that is no classifier."""
    row_ms: float = 0.0
    """Milliseconds for a batch of one row, the median of several."""
    batch_ms: float = 0.0
    """Milliseconds for a whole batch, the median of several."""
    size_bytes: int = 0
    """Of its weights."""


@dataclass(frozen=True)
class Improvement:
    """By how much the challenger is better on the same rows: above 0 it is, in either order."""

    value: float
    low: float
    high: float
    """The bounds of the confidence interval."""
    differing_rows: int | None = None
    """On how many rows the two differ; None: of an earlier version."""
    needed_rows: int = 0
    """The fewest differing rows that can show an improvement with the interval's confidence."""

    @property
    def lacks_rows(self) -> bool:
        """Whether the two differ on too few rows for a bootstrap to say which one is better."""
        return self.differing_rows is not None and self.differing_rows < self.needed_rows


@dataclass(frozen=True)
class Evidence:
    """What the decision is made of."""

    challenger: Score
    champion: Score | None = None
    """None: there is no champion yet, or the two could not be compared."""
    improvement: Improvement | None = None
    has_changed_data: bool = False
    """Whether the rows are others than those on which the champion was chosen."""
    failure: str = ""
    """Why the two could not be compared; empty: they were, or there is no champion."""


def decide(
    metric: str, order: Order, evidence: Evidence, rules: GateOptions
) -> tuple[Outcome, tuple[str, ...]]:
    """What becomes of the challenger, and why: the first reason is the one that decided."""
    if refusals := tuple(_refusals(metric, order, evidence, rules)):
        return Outcome.KEEP, refusals
    if evidence.failure:
        return Outcome.ASK, (f"they cannot be compared: {evidence.failure}",)
    if evidence.champion is None:
        why = (
            f"there was no champion before it, and {metric} is {_text(evidence.challenger.metric)}"
        )
    else:
        why = _improvement_text(metric, evidence) + _allowance(evidence.improvement, rules)
        if evidence.has_changed_data and rules.on_changed_data != "compare":
            outcome = Outcome.ASK if rules.on_changed_data == "ask" else Outcome.KEEP
            return outcome, ("the test data are not those on which the champion was chosen", why)
    if rules.require_approval:
        return Outcome.ASK, ("a person has to approve it (require_approval)", why)
    return Outcome.PROMOTE, (why,)


def _refusals(metric: str, order: Order, evidence: Evidence, rules: GateOptions) -> Iterator[str]:
    """Why the challenger cannot become champion, whoever is asked."""
    value = evidence.challenger.metric
    if value is None or not math.isfinite(value):
        yield f"{metric} of the challenger is not finite"
        return
    if rules.gate_minimum is not None and not _is_at_least(value, rules.gate_minimum, order):
        bound = "at least" if order == "max" else "at most"
        yield f"{metric} {_text(value)} has to be {bound} {_text(rules.gate_minimum)}"
    if evidence.champion is None:
        return
    improvement = evidence.improvement
    if improvement is None or not improvement.low > rules.min_improvement:
        bound = _text(rules.min_improvement)
        yield f"{_improvement_text(metric, evidence)}, not all above {bound}"
    elif rules.min_improvement >= 0 and improvement.lacks_rows:
        yield (
            f"{_improvement_text(metric, evidence)}: they differ on {improvement.differing_rows} "
            f"rows, and on fewer than {improvement.needed_rows} that may be chance"
        )
    yield from _broken_guards(evidence.challenger, evidence.champion, rules)


def _broken_guards(challenger: Score, champion: Score, rules: GateOptions) -> Iterator[str]:
    if rules.max_recall_drop is not None:
        for name, before in champion.recalls.items():
            now = challenger.recalls.get(name)
            if before is not None and (now is None or before - now > rules.max_recall_drop):
                yield (
                    f"recall of {name} falls from {_text(before)} to {_text(now)}, by more than "
                    f"{_text(rules.max_recall_drop)}"
                )
    for what, limit, now, before in (
        ("ms for a row", rules.max_latency_ratio, challenger.row_ms, champion.row_ms),
        ("ms for a batch", rules.max_latency_ratio, challenger.batch_ms, champion.batch_ms),
        ("bytes of weights", rules.max_size_ratio, challenger.size_bytes, champion.size_bytes),
    ):
        if limit is not None and now > limit * before:
            yield f"{_text(now)} {what}, the champion takes {_text(before)}: over {limit:g} times"


def _improvement_text(metric: str, evidence: Evidence) -> str:
    found, champion = evidence.improvement, evidence.champion
    before = champion.metric if champion else None
    both = f"{metric} {_text(before)} → {_text(evidence.challenger.metric)}"
    if found is None:
        return f"{both}, with no interval"
    interval = f"[{_signed(found.low)}, {_signed(found.high)}]"
    change = "an improvement" if found.value >= 0 else "a change for the worse"
    return f"{both}, {change} of {_signed(found.value)} {interval}"


def _allowance(found: Improvement | None, rules: GateOptions) -> str:
    """Which rule lets a challenger pass that is not shown to be better."""
    if found is None or found.low > 0:
        return ""
    return f", which min_improvement {_text(rules.min_improvement)} allows"


def _is_at_least(value: float, bound: float, order: Order) -> bool:
    return value >= bound if order == "max" else value <= bound


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _signed(value: float) -> str:
    return f"{value:+.4g}"
