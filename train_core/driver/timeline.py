"""Seconds from the start of the process that was asked for a pipeline until its milestones."""

from __future__ import annotations

import time
from collections.abc import Sequence

from train_core.policy.metric_names import TRAIN_LOSS
from train_core.storage.records.journal import Entry

RAY_UP, WORKERS_READY = "Ray up", "workers ready"
FIRST_STEP, LAST_STEP = "first step", "last step"
EVALUATED, PUBLISHED = "evaluated", "published"


class Timeline:
    """The timestamps of this driver's events."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        # The journal has the steps of drivers before this one, too.
        self._since = began_at
        self._moments: dict[str, float] = {}

    def mark(self, event: str, at: float | None = None) -> None:
        """Note that the event is now, or was at that time in seconds since 1970."""
        self._moments[event] = time.time() if at is None else at

    def mark_steps(self, entries: Sequence[Entry]) -> None:
        """Note the first and the last step since the beginning, if there was one."""
        steps = [
            entry.time
            for entry in entries
            if TRAIN_LOSS in entry.metrics and entry.time >= self._since
        ]
        if steps:
            self.mark(FIRST_STEP, min(steps))
            self.mark(LAST_STEP, max(steps))

    def seconds(self) -> dict[str, float]:
        """Seconds from the beginning to each event, in their order."""
        ordered = sorted(self._moments.items(), key=lambda one: one[1])
        return {event: round(at - self.began_at, 2) for event, at in ordered}
