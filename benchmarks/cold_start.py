"""What a cold demo spends its seconds on: `python -m benchmarks.cold_start`.

It runs `evertrain demo` where nothing runs and nothing was run before, and adds up what each of its
processes computes: until the first step, until the report, and in all. Two cores give two CPU
seconds a second: as long as these are used up, only less work makes the start quicker.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from benchmarks.pipeline import BIN, cold_environment
from train_core.results import Report

EVERY_S = 0.1
COMMAND = "the command"
KINDS = {
    # The raylet's command line has the worker's: it comes first.
    "raylet/raylet": "Ray's head and raylet",
    "driver.process_entry": "the driver",
    "prefect.server": "Prefect's server",
    "TrainWorker": "the two workers",
    "ray::IDLE": "the two workers",
    "default_worker": "the two workers",
    "gcs_server": "Ray's head and raylet",
    "autoscaler": "Ray's monitor",
    "log_monitor": "Ray's log monitor",
    "dashboard/dashboard.py": "Ray's dashboard, which shows nothing",
    "dashboard_agent": "Ray's agents",
    "DashboardAgent": "Ray's agents",
    "runtime_env": "Ray's agents",
    "RuntimeEnvAgent": "Ray's agents",
}
"""What is in a process's command line, and what the table calls it."""


class Sampled:
    """The CPU seconds of a process and all below it, by kind, at each moment."""

    def __init__(self, process: psutil.Process) -> None:
        self._root = process
        self._kinds: dict[int, str] = {}
        self._used: dict[int, float] = {}
        self.moments: list[tuple[float, dict[str, float]]] = []
        """Seconds since 1970, and what each kind had used by then."""

    def look(self) -> None:
        """Add a moment; a process that ended keeps what it had used when it was last seen."""
        for one in (self._root, *self._root.children(recursive=True)):
            try:
                self._kinds[one.pid] = self._kind(one) or self._kinds.get(one.pid, "others")
                times = one.cpu_times()
            except psutil.Error:
                continue
            self._used[one.pid] = times.user + times.system
        used: dict[str, float] = defaultdict(float)
        for pid, seconds in self._used.items():
            used[self._kinds[pid]] += seconds
        self.moments.append((time.time(), used))

    def until(self, at: float) -> dict[str, float]:
        """What each kind had used by then."""
        return next(used for when, used in reversed(self.moments) if when <= at)

    def _kind(self, process: psutil.Process) -> str | None:
        if process.pid == self._root.pid:
            return COMMAND
        line = " ".join(process.cmdline())
        return next((kind for part, kind in KINDS.items() if part in line), None)


def cold_demo(home: Path) -> tuple[Sampled, Report, float]:
    """Run the demo in an empty folder: its processes, its report, its seconds."""
    with (home / "output").open("w") as output:
        demo = subprocess.Popen(
            [BIN / "evertrain", "demo"],
            cwd=home,
            env={**os.environ, **cold_environment(home)},
            stdout=output,
            stderr=output,
        )
        sampled = Sampled(psutil.Process(demo.pid))
        while demo.poll() is None:
            sampled.look()
            time.sleep(EVERY_S)
    if demo.returncode:
        raise RuntimeError(f"the demo failed:\n{(home / 'output').read_text()}")
    (report,) = home.glob(".evertrain/runs/*/report.json")
    began_at = sampled.moments[0][0]
    took_s = sampled.moments[-1][0] - began_at
    return sampled, Report.model_validate_json(report.read_text()), took_s


def main() -> None:
    """Measure, print the table and the line of JSON."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    import_s = time.perf_counter() - begin
    with tempfile.TemporaryDirectory(prefix="cold-") as home:
        sampled, report, took_s = cold_demo(Path(home))
    began_at, last = sampled.moments[0][0], sampled.moments[-1][1]
    stages = [sampled.until(began_at + report.timeline[e]) for e in ("first step", "published")]
    print(f"{'CPU seconds of':38} {'first step':>12} {'published':>12} {'in all':>12}")
    for kind in sorted(last, key=last.__getitem__, reverse=True):
        print(f"{kind:38} " + " ".join(f"{used.get(kind, 0):12.1f}" for used in (*stages, last)))
    cores = len(os.sched_getaffinity(0))
    machine = platform.processor() or platform.machine()
    print(f"\n{machine}, {cores} cores; import torch took {import_s:.2f} s")
    figures = {
        "cpu_s": round(sum(last.values()), 1),
        "took_s": round(took_s, 1),
        "import_torch_s": round(import_s, 2),
        "timeline": report.timeline,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
