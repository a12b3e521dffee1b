"""The times of the driver, in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from train_core.policy.restarts import RestartRules


@dataclass(frozen=True)
class Timing:
    """Intervals of the driver, and how often it begins again."""

    restarts: RestartRules = field(default_factory=RestartRules)
    stop_poll_s: float = 1.0
    """How often the run folder is looked at for a request to stop."""


TIMING = Timing()
