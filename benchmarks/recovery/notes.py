"""What the ranks of a training noted of their steps, and killing one of them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WITHIN_S = 120.0
NUM_RANKS = 2


@dataclass(frozen=True)
class Step:
    """A step that a process has done; one that was done again is there again."""

    number: int
    at: float
    """In seconds since 1970."""
    pid: int


@dataclass(frozen=True)
class Kill:
    """A rank that was killed, and what came of it."""

    at: float
    recovered_s: float
    """Until the first step of the next attempt had ended on all ranks."""
    work_lost_s: float
    """How long the steps that are done again had taken."""


class Notes:
    """The folder in which the ranks of one training note their steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self, rank: int = 0) -> list[Step]:
        """The steps of a rank, in the order in which they were done."""
        try:
            lines = (self.folder / f"steps-{rank}").read_text().splitlines()
        except FileNotFoundError:
            return []
        split = (line.split() for line in lines)
        return [Step(int(number), float(at), int(pid)) for number, at, pid in split]

    def rank(self, number: int) -> dict[str, Any]:
        """A rank's pid and threads."""
        found: dict[str, Any] = json.loads((self.folder / f"rank-{number}.json").read_text())
        return found

    def kill_once(self, drawn: random.Random) -> Kill:
        """Kill a rank at a moment, both drawn, and wait until all ranks train again."""
        begun = len(self.steps())
        wait_until(lambda: len(self.steps()) > begun + 5)
        time.sleep(drawn.uniform(1, 4))
        old = {step.pid for rank in range(NUM_RANKS) for step in self.steps(rank)}
        at = time.time()
        os.kill(self.rank(drawn.randrange(NUM_RANKS))["pid"], signal.SIGKILL)
        wait_until(lambda: all(self._first_of_another(rank, old) for rank in range(NUM_RANKS)))
        firsts = [
            found for rank in range(NUM_RANKS) if (found := self._first_of_another(rank, old))
        ]
        again_from = firsts[0].number
        kept = [step.at for step in self.steps() if step.pid in old and step.number < again_from]
        return Kill(at, max(step.at for step in firsts) - at, at - max(kept, default=at))

    def _first_of_another(self, rank: int, old: set[int]) -> Step | None:
        """The first step that this rank did in a process of the next attempt."""
        after = [step for step in self.steps(rank) if step.pid not in old]
        newest = after[-1].pid if after else 0
        return next((step for step in after if step.pid == newest), None)


def wait_until(what: Callable[[], bool]) -> None:
    """Raise RuntimeError if it does not come."""
    deadline = time.monotonic() + WITHIN_S
    while not what():
        if time.monotonic() > deadline:
            raise RuntimeError(f"it did not come within {WITHIN_S:g} s")
        time.sleep(0.01)
