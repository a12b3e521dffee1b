"""What the rehearsal of a new run costs: `python -m benchmarks.rehearsal`.

CPU seconds of `evertrain check`, and seconds of a cold `evertrain retrain` with and without
a rehearsal, by turns. Every run is a process of its own; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.pipeline import BIN, cold_environment
from benchmarks.report import Report
from train_core.policy.findings import EVERYTHING
from train_core.requests import ACCEPT

KEYS = ("rehearsal_cpu_s_digits", "rehearsal_cpu_s_resnet", "cold_with_vs_without")


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


def cold_s(*, rehearses: bool) -> float:
    """Seconds of a retraining on the digits, where nothing runs and nothing was run before."""
    with tempfile.TemporaryDirectory() as folder:
        accepted = {ACCEPT: "" if rehearses else EVERYTHING}
        environment = os.environ | cold_environment(Path(folder)) | accepted
        begin = time.perf_counter()
        asked = [str(BIN / "evertrain"), "retrain", "--epochs", "2", "--num-workers", "2"]
        subprocess.run(asked, check=True, capture_output=True, cwd=folder, env=environment)
        return time.perf_counter() - begin


def main() -> None:
    """Measure, and print the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of cold runs")
    parser.add_argument("--mnist", help="the folder of MNIST's files, for ResNet-18")
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
    ratios = []
    for number in range(asked.rounds):
        # Who comes first in a pair changes.
        turns = (True, False) if number % 2 == 0 else (False, True)
        took = {rehearses: cold_s(rehearses=rehearses) for rehearses in turns}
        report.add("cold, with a rehearsal, s", took[True])
        report.add("cold, without one, s", took[False])
        ratios.append(took[True] / took[False])
    report.figure("cold_with_vs_without", statistics.median(ratios))
    print(json.dumps(report.figures))


if __name__ == "__main__":
    main()
