"""`make soak`: retraining again and again on a Ray cluster that stays, with faults by chance.

Each pipeline is compared with an undisturbed one, and after each it is looked what the cluster
holds: actors, reserved places, processes, open files, memory, and what lies on the disk beside the
runs. The last line is JSON; the exit code says whether a pipeline differed or something grew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.services import BIN, ray_cluster
from tests import commands
from tests.chaos.pipeline import House, undisturbed
from tests.chaos.strike import Fault, strike
from tests.flows.conftest import isolated

VICTIMS = ("nobody", "rank 0", "all ranks", "the job", "the flow")
LONGEST_S = 40.0
# What may differ between the first and the last third of the rounds.
MAY_GROW = {
    "actors": 0.0,
    "reserved places": 0.0,
    "processes": 1.0,
    "open files": 30.0,
    "memory, MB": 150.0,
    "disk beside the runs, MB": 50.0,
}
# Ray's workers without work end after a second or so; its view of actors follows.
REST_S = 8.0


def sample(address: str, folder: Path, home: Path) -> dict[str, float]:
    """What the cluster holds while nobody uses it."""
    time.sleep(REST_S)
    ours = [
        process
        for process in psutil.Process().children(recursive=True)
        if "ray::IDLE" not in process.name()
    ]
    found = {"processes": 0.0, "open files": 0.0, "memory, MB": 0.0}
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            # Ray's log monitor keeps the logs of workers open that have ended, up to 200.
            if not any("log_monitor" in argument for argument in process.cmdline()):
                found["open files"] += process.num_fds()
            found["memory, MB"] += process.memory_full_info().uss / 1e6
            found["processes"] += 1
    logs = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    runs = home / ".evertrain/runs"
    kept = (file for file in home.rglob("*") if file.is_file() and runs not in file.parents)
    return found | {
        "actors": count(address, "actors", "ALIVE"),
        "reserved places": count(address, "placement-groups", "CREATED"),
        "disk beside the runs, MB": (logs + sum(file.stat().st_size for file in kept)) / 1e6,
    }


def count(address: str, what: str, state: str) -> float:
    """How many of Ray's things are in a state."""
    told = commands.succeed(
        [str(BIN / "ray"), "list", what, "--filter", f"state={state}", "--format", "json"],
        env={**os.environ, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "token"},
    )
    # It says so in words where there are none.
    begin = told.stdout.find("[")
    return float(len(json.loads(told.stdout[begin:]))) if begin >= 0 else 0.0


def grown(samples: list[dict[str, float]]) -> dict[str, float]:
    """What is more in the last third of the samples than in the first, beyond what may be."""
    third = max(1, len(samples) // 3)
    growth = {
        name: statistics.median(one[name] for one in samples[-third:])
        - statistics.median(one[name] for one in samples[:third])
        for name in MAY_GROW
    }
    return {name: more for name, more in growth.items() if more > MAY_GROW[name]}


def drawn(moments: random.Random) -> Fault:
    return Fault(moments.choice(VICTIMS), "at random", after_s=moments.uniform(1, LONGEST_S))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    moments, deadline = random.Random(asked.seed), time.monotonic() + 60 * asked.minutes
    table = Table("round", "fault", "by itself", "identical", *MAY_GROW)
    samples, different = [], 0
    # Ray's sockets need a short path.
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as home,
        tempfile.TemporaryDirectory(prefix="ray-") as folder,
        ray_cluster(Path(folder), "--num-cpus=2") as address,
    ):
        place = Path(home)
        ours = House(place, isolated(place), f"{home}/.evertrain/runs", address)
        reference = undisturbed(ours)
        while time.monotonic() < deadline:
            number = len(samples) + 1
            recovery = strike(ours, drawn(moments), f"struck-{number}", reference)
            different += not recovery.is_good
            # Its folder is what a user keeps; the soak keeps the first.
            shutil.rmtree(ours.folder(f"struck-{number}").url)
            samples.append(sample(address, Path(folder), place))
            verdict = "yes" if recovery.is_good else f"NO: {recovery.faults}"
            shown = [f"{samples[-1][name]:.0f}" for name in MAY_GROW]
            by_itself = "no" if recovery.again else "yes"
            table.add_row(str(number), str(recovery.fault), by_itself, verdict, *shown)
            sys.stdout.write(f"{number} {recovery.fault}: {verdict}; {', '.join(shown)}\n")
            sys.stdout.flush()
    Console(width=160).print(table)
    growth = grown(samples)
    rounds = len(samples)
    told = {"rounds": rounds, "identical": rounds - different, "grown": growth}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.exit(bool(different or growth))


if __name__ == "__main__":
    main()
