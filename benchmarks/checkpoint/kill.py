"""What is lost when a training is killed at a random moment.

Nothing of a snapshot that is older than the slowest commit of the run: the next attempt goes on
from it, or from a newer one. The figure is the number of steps that it went back further, over all
kills.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from benchmarks.checkpoint import training
from benchmarks.checkpoint.bench import Bench
from benchmarks.checkpoint.ranks import Ranks

NUM_KILLS = 20
COMMIT = "commit of 14 MB after the snapshot, s"


def measure(bench: Bench) -> None:
    """Kill the same run again and again."""
    report, folder, moments = bench.report, bench.fresh(), random.Random(0)
    state_mb, num_kills, longest_s = (1, 2, 1.0) if bench.is_quick else (14, NUM_KILLS, 3.0)
    task = {"storage": str(folder), "settings": {"state_mb": state_mb}, "every": 20}
    begun_at: list[int] = []
    ages: list[dict[int, float]] = []
    for attempt in range(1, num_kills + 2):
        log = folder / f"{attempt}.txt"
        with Ranks(folder, f"kill-{attempt}", 2) as ranks:
            ranks.start(training.start, task | {"attempt": attempt})
            begun_at.append(ranks.ask("where")[0])
            if attempt > num_kills:
                ranks.ask("close")
                break
            ranks.tell("train_forever", log=str(log))
            wait_for_commit(log)
            time.sleep(moments.uniform(0, longest_s))
            killed_at = ranks.kill()
        snapshots, commits = events(log, "snapshot"), events(log, "commit")
        report.add(COMMIT, *(commits[step] - snapshots[step] for step in commits))
        ages.append({step: killed_at - taken_at for step, taken_at in snapshots.items()})
    slowest, lost = max(report.series[COMMIT]), 0
    for of_kill, found in zip(ages, begun_at[1:], strict=True):
        old = [step for step, age in of_kill.items() if age > slowest]
        lost += max(0, max(old, default=0) - found)
        # Where one was not committed, this is how long it had been under way.
        under_way = [age for step, age in of_kill.items() if step > found]
        report.add("age of a snapshot that was lost, s", *under_way)
    report.figure("steps_lost", lost)


def wait_for_commit(log: Path) -> None:
    """Until the training has committed once."""
    deadline = time.monotonic() + 60
    while not (log.exists() and "commit" in log.read_text()):
        if time.monotonic() > deadline:
            raise RuntimeError("no checkpoint was committed within 60 s")
        time.sleep(0.01)


def events(log: Path, what: str) -> dict[int, float]:
    """When the events of a kind happened, by step."""
    lines = (line.split() for line in log.read_text().splitlines())
    return {int(line[1]): float(line[2]) for line in lines if len(line) == 3 and line[0] == what}
