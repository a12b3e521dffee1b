"""What the rehearsal of a new run costs: `python -m benchmarks.rehearsal`.

CPU seconds of `evertrain check`, and seconds of a cold `evertrain retrain` with and without
a rehearsal, by turns; with `--before TREE` also beside an earlier version, which lies in that
folder. Every run is a process of its own; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.pipeline import BIN, ROOT, cold_environment
from benchmarks.report import Report
from train_core.policy.findings import EVERYTHING
from train_core.requests import ACCEPT

KEYS = (
    "rehearsal_cpu_s_digits",
    "rehearsal_cpu_s_resnet",
    "cold_with_vs_without",
    "cold_with_vs_before",
)


def cpu_s(workload: str, settings: dict[str, str]) -> float:
    """CPU seconds of one rehearsal, with what it imports beside torch itself."""
    asked = [
        str(BIN / "evertrain"),
        "check",
        workload,
        "--settings",
        json.dumps(settings),
        "--json",
    ]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["cpu_s"])


def cold_s(*, rehearses: bool, tree: Path = ROOT) -> float:
    """Seconds of a retraining on the digits, where nothing runs and nothing was run before."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = {
            ACCEPT: "" if rehearses else EVERYTHING,
            "PYTHONPATH": str(tree / "importable"),
        }
        environment = os.environ | cold_environment(Path(folder)) | chosen
        begin = time.perf_counter()
        asked = [str(BIN / "evertrain"), "retrain", "--epochs", "2", "--num-workers", "2"]
        subprocess.run(asked, check=True, capture_output=True, cwd=folder, env=environment)
        return time.perf_counter() - begin


def by_turns(report: Report, rounds: int, *contenders: tuple[str, Callable[[], float]]) -> float:
    """The median of the ratios of two contenders, who come first in every other pair."""
    ratios = []
    for number in range(rounds):
        took = {name: run() for name, run in contenders[:: 1 if number % 2 == 0 else -1]}
        for name, _ in contenders:
            report.add(name, took[name])
        first, second = (took[name] for name, _ in contenders)
        ratios.append(first / second)
    return statistics.median(ratios)


def main() -> None:
    """Measure, and print the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of cold runs")
    parser.add_argument("--mnist", help="the folder of MNIST's files, for ResNet-18")
    parser.add_argument("--before", type=Path, help="the folder of an earlier version")
    asked = parser.parse_args()
    report = Report(KEYS)
    os.environ.pop(ACCEPT, None)
    workloads: dict[str, tuple[str, dict[str, str]]] = {
        "digits": ("train_core.workloads.digits:Digits", {})
    }
    if asked.mnist:
        of_mnist = {"data": asked.mnist}
        workloads["resnet"] = ("train_core.workloads.mnist:MnistResNet18", of_mnist)
    for name, workload in workloads.items():
        report.add(f"rehearsal of {name}, CPU s", *(cpu_s(*workload) for _ in range(asked.rounds)))
        report.figure(f"rehearsal_cpu_s_{name}", report.median(f"rehearsal of {name}, CPU s"))
    with_one = ("cold, with a rehearsal, s", partial(cold_s, rehearses=True))
    without = ("cold, without one, s", partial(cold_s, rehearses=False))
    report.figure("cold_with_vs_without", by_turns(report, asked.rounds, with_one, without))
    if asked.before:
        before = ("cold, before, s", partial(cold_s, rehearses=True, tree=asked.before.absolute()))
        report.figure("cold_with_vs_before", by_turns(report, asked.rounds, with_one, before))
    print(json.dumps(report.figures))


if __name__ == "__main__":
    main()
