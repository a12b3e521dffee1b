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
CYCLE_S = 1.0
"""From a checkpoint to the next: a kill falls anywhere in it."""


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
    """Until all ranks had ended a step beyond all that were done before."""
    steps_lost: int
    """How many steps were done again."""
    work_lost_s: float
    """How long these had taken."""


class Notes:
    """The folder in which the ranks of one training note their steps."""

    def __init__(self, folder: Path, num_ranks: int = NUM_RANKS) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.num_ranks = num_ranks

    def steps(self, rank: int = 0) -> list[Step]:
        """The steps of a rank, in the order in which they were done."""
        try:
            *lines, _ = (self.folder / f"steps-{rank}").read_text().split("\n")
        except FileNotFoundError:
            return []
        # Of the last one a part may be written.
        split = (line.split() for line in lines)
        return [Step(int(number), float(at), int(pid)) for number, at, pid in split]

    def rank(self, number: int) -> dict[str, Any]:
        """A rank's pid and threads."""
        found: dict[str, Any] = json.loads((self.folder / f"rank-{number}.json").read_text())
        return found

    def newest(self) -> int:
        """The newest step that any rank has done."""
        return max((step.number for rank in self._ranks for step in self.steps(rank)), default=0)

    def wait_for_steps(self, count: int) -> None:
        """Wait until so many more are done."""
        begun = len(self.steps())
        wait_until(lambda: len(self.steps()) >= begun + count)

    def kill_once(self, drawn: random.Random) -> Kill:
        """Kill a rank at a moment, both drawn, and wait until all ranks train further."""
        time.sleep(drawn.uniform(0, CYCLE_S))
        victim = drawn.randrange(self.num_ranks)
        pid = self.rank(victim)["pid"]
        at = time.time()
        os.kill(pid, signal.SIGKILL)
        before = [step for rank in self._ranks for step in self.steps(rank) if step.at <= at]
        done = max(step.number for step in before)
        wait_until(lambda: all(self._beyond(rank, done, pid) for rank in self._ranks))
        firsts = [step for rank in self._ranks if (step := self._beyond(rank, done, pid))]
        after = [step.number for step in self.steps(victim) if step.at > at and step.pid != pid]
        again = [step for step in before if step.number >= after[0]]
        began = max((step.at for step in before if step.number == after[0] - 1), default=at)
        return Kill(
            at,
            max(step.at for step in firsts) - at,
            max(0, done - after[0] + 1),
            max(step.at for step in again) - began if again else 0.0,
        )

    @property
    def _ranks(self) -> range:
        return range(self.num_ranks)

    def _beyond(self, rank: int, done: int, killed: int) -> Step | None:
        """The first step beyond those that this rank did after the kill."""
        steps = self.steps(rank)
        return next((s for s in steps if s.number > done + 1 and s.pid != killed), None)


def wait_until(what: Callable[[], bool]) -> None:
    """Raise RuntimeError if it does not come."""
    deadline = time.monotonic() + WITHIN_S
    while not what():
        if time.monotonic() > deadline:
            raise RuntimeError(f"it did not come within {WITHIN_S:g} s")
        time.sleep(0.01)
