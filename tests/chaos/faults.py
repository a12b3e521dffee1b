"""Who is struck, and when."""

from __future__ import annotations

import random
import signal

from tests.chaos.further import FURTHER
from tests.chaos.stages import AFTER_TRAINING, HELD, INFERENCE
from tests.chaos.strike import Fault

SCHEDULED = [
    *(Fault("rank 0", stage) for stage in HELD),
    *(Fault("rank 1", stage, rank=1) for stage in ("set-up", "first step", "mid-epoch", "upload")),
    Fault("rank 1", "validation", rank=1),
    *(Fault("all ranks", stage) for stage in ("mid-epoch", "before the manifest")),
    *(Fault("ranks 02", stage, workers=3) for stage in ("mid-epoch", "upload", "validation")),
    *(Fault("rank 1", "mid-epoch", rank=1, then=then) for then in FURTHER),
    *(
        Fault("rank 1", stage, rank=1, how=signal.SIGTERM)
        for stage in ("mid-epoch", "upload", "validation")
    ),
    *(
        Fault(victim, stage)
        for victim in ("the raylet", "the head")
        for stage in ("mid-epoch", "upload", *AFTER_TRAINING)
    ),
    *(Fault("the driver", stage) for stage in ("set-up", "mid-epoch", *AFTER_TRAINING)),
    Fault("the driver", "before the manifest"),
    Fault("who scores", INFERENCE),
    *(Fault("the flow", stage) for stage in (*HELD, *AFTER_TRAINING)),
    *(
        Fault("rank 1", stage, rank=1, how=signal.SIGSTOP)
        for stage in ("set-up", "mid-epoch", "validation")
    ),
    *(Fault("the flow", stage, how=signal.SIGTERM) for stage in ("mid-epoch", *AFTER_TRAINING)),
    *(Fault("the flow", stage, how=signal.SIGINT) for stage in ("mid-epoch", "validation")),
]
"""Rank 0 and the flow at every stage, the others where their end is another thing."""

_VICTIMS = (
    *("rank 0", "rank 1", "all ranks", "the raylet"),
    *("the head", "the driver", "the flow"),
)


def at_random(drawn: random.Random, count: int, within_s: float) -> list[Fault]:
    """So many faults at moments drawn by chance, so many seconds after the command began."""
    moments = [drawn.uniform(1, within_s) for _ in range(count)]
    return [Fault(drawn.choice(_VICTIMS), "at random", after_s=after) for after in moments]
