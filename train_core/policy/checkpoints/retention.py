"""Which checkpoints stay, and why; every other one may be deleted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from train_core.policy.checkpoints.selection import Candidate, Order, ranked, score
from train_core.policy.samples.steps import due


@dataclass(frozen=True)
class RetentionRules:
    """What to keep. A checkpoint that one rule keeps stays, whatever the others say.

    Raises ValueError where not even the newest or the best would be kept.
    """

    metric: str
    order: Order
    keep_last: int
    """Checkpoints to keep, counted from the newest; at least 1."""
    keep_best: int
    """Checkpoints to keep, counted from the best by `metric`; at least 1."""
    keep_every_steps: int = 0
    """Keep those of every so many steps; 0: the rule is off."""
    keep_newer_than_s: float = 0
    """Keep those younger than so many seconds; 0: the rule is off."""
    ranks_unmeasured: bool = False
    """Whether one without the metric is among the best where fewer have it, as in Ray Train."""

    def __post_init__(self) -> None:
        if min(self.keep_last, self.keep_best) < 1:
            raise ValueError(
                f"keep_last is {self.keep_last} and keep_best is {self.keep_best}: the newest "
                "and the best checkpoint always stay, so both are at least 1"
            )
        if min(self.keep_every_steps, self.keep_newer_than_s) < 0:
            raise ValueError(
                f"keep_every_steps is {self.keep_every_steps} and keep_newer_than_s is "
                f"{self.keep_newer_than_s}: neither can be negative, 0 turns a rule off"
            )


@dataclass(frozen=True)
class RetentionVerdict:
    """What is to become of a checkpoint: it stays for these reasons, or goes if there are none."""

    candidate: Candidate
    reasons: tuple[str, ...]

    @property
    def is_kept(self) -> bool:
        """Whether anything keeps it."""
        return bool(self.reasons)


def retention_verdicts(
    candidates: Iterable[Candidate],
    rules: RetentionRules,
    *,
    now: datetime,
    protected: Mapping[str, Sequence[str]],
) -> list[RetentionVerdict]:
    """A verdict on each candidate, oldest first.

    `protected` names those that stay whatever the rules say, with the reasons: a resume begins
    there, a report names it, somebody reads it. `now` and the candidates' `created_at` are aware
    of their time zones. One whose age is not known counts as young: it stays.

    One that was not scheduled stays while it is the newest, and no rule counts it.

    Apart from age, what goes now would also go later: the rules keep the same checkpoints whether
    they are applied after each commit or once at the end.
    """
    oldest_first = sorted(candidates, key=lambda c: (c.step, c.name))
    newest = {c.name for c in oldest_first[-1:]}
    # An unscheduled checkpoint would push a scheduled one out, so an interrupted run would keep
    # different checkpoints.
    scheduled = [c for c in oldest_first if c.scheduled]
    last = {c.name for c in scheduled[-rules.keep_last :]}
    best = _best(scheduled, rules)

    def reasons(candidate: Candidate) -> Iterable[str]:
        if candidate.name in newest:
            yield "the newest: a resume begins here"
        if candidate.name in last:
            yield f"among the last {rules.keep_last}"
        if candidate.name in best:
            yield f"among the best {rules.keep_best} by {rules.metric}"
        if candidate.scheduled and due(rules.keep_every_steps, candidate.step):
            yield f"one of every {rules.keep_every_steps} steps"
        if candidate.scheduled and _is_young(candidate, rules, now):
            yield f"younger than {rules.keep_newer_than_s:g} s"
        yield from protected.get(candidate.name, ())

    return [RetentionVerdict(candidate, tuple(reasons(candidate))) for candidate in oldest_first]


def finalists(candidates: Iterable[Candidate], rules: RetentionRules) -> list[Candidate]:
    """The checkpoints that the best one is chosen from, if each epoch ends with a checkpoint.

    Oldest first, they are the last one, and the best `keep_best` of those with a validation. A
    storage that is slow, or away for minutes, may leave out other checkpoints, but none of these,
    so the choice is the same.
    """
    oldest_first = sorted(candidates, key=lambda c: (c.step, c.name))
    best = _best([c for c in oldest_first if c.scheduled], rules)
    return [c for c in oldest_first if c.name in best or c is oldest_first[-1]]


def _best(scheduled: list[Candidate], rules: RetentionRules) -> set[str]:
    # What was not measured is not among the best, however few there are.
    measured = [c for c in scheduled if rules.ranks_unmeasured or _is_measured(c, rules)]
    return {c.name for c in ranked(measured, rules.metric, rules.order)[: rules.keep_best]}


def _is_measured(candidate: Candidate, rules: RetentionRules) -> bool:
    return score(candidate.metrics.get(rules.metric), rules.order) > -math.inf


def _is_young(candidate: Candidate, rules: RetentionRules, now: datetime) -> bool:
    if not rules.keep_newer_than_s:
        return False
    created = candidate.created_at
    return created is None or (now - created).total_seconds() < rules.keep_newer_than_s
