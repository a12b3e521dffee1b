"""What checkpoints cost a CPU-bound training, and how soon each is committed.

Windows of one long training, 140 MB of state, both cores busy: one with a checkpoint at its
beginning and one without, in turns, so that the machine's drift cancels; between them windows in
which a plain program writes the checkpoint's bytes and waits until the disk has them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import fmean

from scipy import stats

from benchmarks.checkpoint import training
from benchmarks.checkpoint.bench import Bench
from benchmarks.checkpoint.ranks import Ranks

WINDOW_S = 5.0
NUM_PAIRS = 30


def measure(bench: Bench) -> None:
    """The slow-down with its confidence interval, and the commit against a plain write."""
    report, folder = bench.report, bench.fresh()
    state_mb, batch_size, window_s, num_pairs = 140, 64, WINDOW_S, NUM_PAIRS
    if bench.is_quick:
        state_mb, batch_size, window_s, num_pairs = 2, 64, 0.3, 3
    task = {"storage": str(folder), "settings": {"state_mb": state_mb}, "batch_size": batch_size}
    with Ranks(folder, "slow", 2).start(training.start, task) as ranks:
        ranks.ask("turn", steps=2, mode="save once")
        step_s = ranks.ask("turn", steps=10)[0]["seconds"] / 10
        report.add("slow-down: seconds of a step", step_s)
        steps = max(1, round(window_s / step_s))
        data = os.urandom(stored_bytes(folder))
        slower = []
        for pair in range(num_pairs):
            order = ["save once", "train"] if pair % 2 else ["train", "save once"]
            seconds = {}
            for mode in order:
                os.sync()
                first = ranks.ask("turn", steps=steps, mode=mode)[0]
                seconds[mode] = first["seconds"]
                report.add("commit after the snapshot, s", *first["commits"])
            slower.append(100 * (seconds["save once"] / seconds["train"] - 1))
            report.add("slow-down, %", slower[-1])
            if pair % (2 if bench.is_quick else 4) == 0:
                ranks.tell("turn", steps=max(1, steps // 2))
                time.sleep(window_s / 10)
                report.add("plain write and fsync, s", plain_write(folder / "plain", data))
                ranks.answers()
        ranks.ask("close")
    interval = stats.ttest_1samp(slower, 0).confidence_interval(0.95)
    report.figure("slowdown_pct", fmean(slower))
    report.figure("slowdown_pct_ci95", [float(interval.low), float(interval.high)])
    commit = report.median("commit after the snapshot, s")
    report.figure("commit_vs_write", commit / report.median("plain write and fsync, s"))


def stored_bytes(folder: Path) -> int:
    """All files of the newest checkpoint."""
    newest = max((folder / "run/checkpoints").iterdir())
    return sum(file.stat().st_size for file in newest.iterdir())


def plain_write(path: Path, data: bytes) -> float:
    """Seconds to write a new file and to wait until the disk has it."""
    begin = time.perf_counter()
    with path.open("xb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    path.unlink()
    return seconds
