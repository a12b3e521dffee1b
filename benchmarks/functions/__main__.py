"""What a training function written for Ray Train costs on evertrain: `make bench-functions`.

One function, of one file, runs on stock Ray Train and on evertrain, in rounds in which every
contender is a process of its own. It notes when it began and how long each `ray.train.report` of a
folder took. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.pipeline import ROOT, run, timed
from benchmarks.report import Report

ROUNDS = 3
POLL = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
POLL_S = 0.25
"""How often evertrain has Ray's controller poll its workers; by itself it does each 2 s."""
IMPORTED = "import torch in a process of its own, s"
BEGAN = "from the process's start to the function's first line, s"
RESTED, IN_A_ROW = "report, SYNC, s", "report, SYNC, one after the other, s"
BACKGROUND, IN_ALL = "report, ASYNC, s", "ASYNC, until all are committed, s"
SERIES = {
    "rested": RESTED,
    "in_a_row": IN_A_ROW,
    "background": BACKGROUND,
    "background_in_all": IN_ALL,
}
"""What the function notes, as the table calls it."""
RATIOS = {
    "report_vs_stock_sync": RESTED,
    "report_vs_stock_sync_in_a_row": IN_A_ROW,
    "report_vs_stock_async": BACKGROUND,
    "committed_vs_stock_async": IN_ALL,
}
DIFFERENCE = "start_over_stock_s"


@dataclass(frozen=True)
class Sizes:
    """What is reported, and how often."""

    size_mb: float = 140.0
    """Of the folder."""
    reports: int = 6
    """Of each kind."""
    trials: int = 8
    """Of a search."""
    trial_reports: int = 3
    """Of each of its trials."""
    pause_s: float = 2.5
    """Before a report: Ray's controller polls each 2 s, and has consumed the one before."""


SMALL = Sizes(1.4, 2, 2, 2, 0.1)


@dataclass(frozen=True)
class Contender:
    """A program that runs the training function."""

    name: str
    program: str
    environment: Mapping[str, str] = field(default_factory=dict)


STOCK = Contender("(a) stock", "peers/ray_reporting.py")
SAME_POLL = Contender(f"(a') stock, polls each {POLL_S} s", STOCK.program, {POLL: str(POLL_S)})
EVERTRAIN = Contender("(b) evertrain", "functions/evertrain.py")
CONTENDERS = [STOCK, SAME_POLL, EVERTRAIN]
SEARCH = "a search, s"
SEARCHES = {
    "(a) stock": ("peers/tune_stock.py", False),
    "(b) evertrain": ("functions/search.py", False),
    "(c) bare functions of Tune's": ("peers/tune_stock.py", True),
}
"""Who searches: its program, and whether its trials are Tune's own functions."""
SEARCH_RATIOS = {
    "tune_vs_stock": ("(b) evertrain", "(a) stock"),
    "tune_vs_bare": ("(b) evertrain", "(c) bare functions of Tune's"),
}
_RATIO_KEYS = [f"{name}{suffix}" for name in (*RATIOS, DIFFERENCE) for suffix in ("", "_same_poll")]
KEYS = [*_RATIO_KEYS, *SEARCH_RATIOS]
"""The figures."""


def one_round(turns: list[Contender], scratch: Path, report: Report, sizes: Sizes) -> None:
    """Each contender once."""
    report.add(IMPORTED, timed(lambda: run([sys.executable, "-c", "import torch"])))
    for contender in turns:
        turn(contender, scratch, report, sizes)
    for name, (program, is_bare) in SEARCHES.items():
        folder = tempfile.mkdtemp(dir=scratch)
        told = {"storage": folder, "bare": is_bare}
        told |= {"trials": sizes.trials, "reports": sizes.trial_reports}
        searching = [sys.executable, str(ROOT / "benchmarks" / program), json.dumps(told)]
        report.add(f"{name}: {SEARCH}", timed(partial(run, searching)))
        shutil.rmtree(folder)


def turn(contender: Contender, scratch: Path, report: Report, sizes: Sizes) -> None:
    """Run a contender once."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    places = {name: folder / name for name in ("storage", "notes", "scratch")}
    for place in places.values():
        place.mkdir()
    task = {name: str(place) for name, place in places.items()} | asdict(sizes)
    program = str(ROOT / "benchmarks" / contender.program)
    # What others wrote is on the disk, and not in this one's way.
    os.sync()
    started_at = time.time()
    run([sys.executable, program, json.dumps(task)], dict(contender.environment))
    noted = [json.loads(path.read_text()) for path in sorted(places["notes"].iterdir())]
    shutil.rmtree(folder)
    if noted[0]["stored_bytes"] < sizes.size_mb * 1e6 * 0.99:
        raise RuntimeError(f"{contender.name} has stored {noted[0]['stored_bytes']} bytes only")
    report.add(f"{contender.name}: {BEGAN}", max(one["began_at"] for one in noted) - started_at)
    for note, series in SERIES.items():
        report.add(f"{contender.name}: {series}", *slowest([one[note] for one in noted]))


def slowest(of_ranks: list[Any]) -> list[float]:
    """The slowest rank's seconds of each measurement, of which a rank has noted one or several."""
    several = [one if isinstance(one, list) else [one] for one in of_ranks]
    return [max(seconds) for seconds in zip(*several, strict=True)]


def figures(report: Report) -> None:
    """Evertrain's medians beside those of stock, at its defaults and polling as often."""
    for peer, suffix in ((STOCK, ""), (SAME_POLL, "_same_poll")):
        for name, series in RATIOS.items():
            ours, theirs = (report.median(f"{one.name}: {series}") for one in (EVERTRAIN, peer))
            report.figure(f"{name}{suffix}", ours / theirs)
        ours, theirs = (report.median(f"{one.name}: {BEGAN}") for one in (EVERTRAIN, peer))
        report.figure(f"{DIFFERENCE}{suffix}", ours - theirs)
    for name, pair in SEARCH_RATIOS.items():
        ours, theirs = (report.median(f"{one}: {SEARCH}") for one in pair)
        report.figure(name, ours / theirs)


def main() -> None:
    """Measure, print the table and the line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each contender")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    asked = parser.parse_args()
    # Stock Ray Train is at its defaults, whatever this process was started with.
    os.environ.pop(POLL, None)
    report = Report(KEYS)
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    begin = time.perf_counter()
    try:
        if not asked.quick:
            print("in small, not counted, so that all files are in the cache", flush=True)
            one_round(CONTENDERS, scratch, Report(), SMALL)
            print("what counts", flush=True)
        for number in range(1 if asked.quick else asked.rounds):
            first = number % len(CONTENDERS)
            # Another contender begins each round.
            turns = CONTENDERS[first:] + CONTENDERS[:first]
            one_round(turns, scratch, report, SMALL if asked.quick else Sizes())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    figures(report)
    memory_gib = psutil.virtual_memory().total / 2**30
    print(
        f"\n{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores,"
        f" {memory_gib:.0f} GiB, {time.perf_counter() - begin:.0f} s"
    )
    print("\n".join(report.lines()))
    print(json.dumps(report.figures))


if __name__ == "__main__":
    main()
