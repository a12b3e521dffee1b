"""Which checkpoints may be deleted."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from train_core.policy.selection import Candidate, Order, ranked, score


def checkpoints_to_delete(
    candidates: Sequence[Candidate],
    *,
    keep_last: int,
    keep_best: int,
    metric: str,
    order: Order,
    protected: Collection[str] = (),
) -> list[Candidate]:
    """The candidates that no rule keeps, oldest first.

    Kept are the newest `keep_last`, the best `keep_best` by `metric` and every protected name
    (the one that a run resumes from, one that somebody reads).
    """
    oldest_first = sorted(candidates, key=lambda c: (c.step, c.name))
    kept = {c.name for c in oldest_first[-keep_last:]}
    measured = [c for c in candidates if score(c.metrics.get(metric), order) > -math.inf]
    kept |= {c.name for c in ranked(measured, metric, order)[:keep_best]}
    return [c for c in oldest_first if c.name not in kept and c.name not in protected]
