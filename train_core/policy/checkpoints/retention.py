"""Which checkpoints stay, and why; every other one may be deleted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import Field

from train_core.policy.checkpoints.selection import Candidate, ranked, score
from train_core.policy.options import MAY_CHANGE, Options
from train_core.policy.samples.steps import due
from train_core.policy.stop_reasons import MonitorOptions


class RetentionOptions(Options):
    """Which checkpoints are kept; a checkpoint that one rule keeps stays."""

    keep_last: int = Field(
        default=2,
        ge=1,
        description="How many of the newest checkpoints to keep.",
        json_schema_extra=MAY_CHANGE,
    )
    keep_best: int = Field(
        default=3,
        ge=1,
        description="How many of the best checkpoints to keep.",
        json_schema_extra=MAY_CHANGE,
    )
    keep_every_steps: int = Field(
        default=0,
        ge=0,
        description="Keep checkpoints whose step is a multiple of this; 0: no such rule.",
        json_schema_extra=MAY_CHANGE,
    )
    keep_newer_than_s: float = Field(
        default=0,
        ge=0,
        description="Keep checkpoints younger than this, in seconds; 0: no such rule.",
        json_schema_extra=MAY_CHANGE,
    )


class RetentionRules(RetentionOptions, MonitorOptions):
    """What to keep. A checkpoint that one rule keeps stays, whatever the others say."""

    @property
    def ranks_unmeasured(self) -> bool:
        """Whether a checkpoint without the metric is among the best where fewer have it."""
        return False


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
            yield f"among the best {rules.keep_best} by {rules.monitor}"
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
    return {c.name for c in ranked(measured, rules.monitor, rules.order)[: rules.keep_best]}


def _is_measured(candidate: Candidate, rules: RetentionRules) -> bool:
    return score(candidate.metrics.get(rules.monitor), rules.order) > -math.inf


def _is_young(candidate: Candidate, rules: RetentionRules, now: datetime) -> bool:
    if not rules.keep_newer_than_s:
        return False
    created = candidate.created_at
    return created is None or (now - created).total_seconds() < rules.keep_newer_than_s
