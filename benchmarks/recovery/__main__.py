"""How soon a training goes on when a worker was killed, and what watching costs.

`make bench-recovery`. In a round, a training of two workers that commits each second has its second
worker killed by SIGKILL at random moments; then stock Ray Train starts once, and three trainings
run beside an MLflow that is well, slow, or not there. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.checkpoint.report import Report
from benchmarks.services import free_port, mlflow_server
from tests.storage.fault_proxy import FaultProxy
from train_core import TrainConfig
from train_core.driver import Driver, DriverRequest
from train_core.errors import StoppedError

ROUNDS, KILLS_A_ROUND = 5, 3
WATCHED_S, MIRRORED_S = 30.0, 20.0
SLOW_MLFLOW_S = 10.0
STATE_MB, BATCH_SIZE = 14.0, 64
_WITHIN_S = 120.0
_IN_FLIGHT_S = 0.5
CONTROLLER_LOG = "ray-train-app-controller-"

RECOVERED = "from SIGKILL to the next new step, s"
DETECTED = "from SIGKILL until Ray's controller has noticed, s"
WARNED = "from SIGKILL to the driver's warning, s"
STARTED = "from SIGKILL until new workers have started, s"
LOST = "work done again, s"
WELL = "MLflow answers at once, steps/s"
SLOW = "MLflow takes ten seconds for an answer, steps/s"
ABSENT = "nobody listens where MLflow should be, steps/s"
STOCK = "stock Ray Train, from fit() to the first step, s"


class Training:
    """One of ours, in a thread, with what it notes of its steps."""

    def __init__(self, folder: Path, tracking_uri: str = "") -> None:
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True)
        self.log: list[tuple[float, str]] = []
        config = TrainConfig(
            workload="benchmarks.recovery.workload:Noted",
            settings={"state_mb": STATE_MB, "notes": str(self.notes)},
            batch_size=BATCH_SIZE,
            num_workers=2,
            checkpoint_every_s=1,
            checkpoint_every_epochs=0,
            gpus_per_worker=0,
            monitor="validation/loss",
            monitor_order="min",
        )
        request = DriverRequest(
            storage=str(folder / "runs"), run="run", config=config, tracking_uri=tracking_uri
        )
        self.driver = Driver(request, lambda line: self.log.append((time.time(), line)))
        self._thread = threading.Thread(target=self._train)

    def __enter__(self) -> Self:
        self.driver.prepared()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close("KILLED")
        self._thread.join()

    def steps(self) -> list[tuple[int, float]]:
        """Each step that was done, and when; those that were done twice are there twice."""
        try:
            lines = (self.notes / "steps").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(int(step), float(at)) for step, at in (line.split() for line in lines)]

    def rank(self, number: int) -> dict[str, Any]:
        """A rank's pid and threads."""
        found: dict[str, Any] = json.loads((self.notes / f"rank-{number}.json").read_text())
        return found

    def said(self, text: str, after: float) -> float | None:
        """When it first said so."""
        return next((at for at, line in self.log if at > after and text in line), None)

    def _train(self) -> None:
        try:
            self.driver.train()
        except StoppedError:
            return


def kill_once(training: Training, report: Report, rest_s: float) -> None:
    """Kill the second worker when it has trained for a while, and wait for new steps."""
    begun = len(training.steps())
    wait_until(lambda: len(training.steps()) > begun + 5)
    struck = controller_log()
    time.sleep(rest_s)
    killed_at = time.time()
    os.kill(training.rank(1)["pid"], signal.SIGKILL)
    # The first worker may end the step that it is in.
    time.sleep(_IN_FLIGHT_S)
    before = training.steps()
    done = max(step for step, _ in before)
    wait_until(lambda: max(step for step, _ in training.steps()) > done + 1)
    steps = training.steps()[len(before) :]
    again_from = min(step for step, _ in steps)
    saved_at = max((at for step, at in before if step < again_from), default=before[0][1])
    report.add(RECOVERED, next(at for step, at in steps if step > done) - killed_at)
    report.add(LOST, killed_at - saved_at)
    warned_at = training.said("begins again", killed_at)
    assert warned_at
    report.add(DETECTED, logged_at(struck, "[FailurePolicy]") - killed_at)
    report.add(WARNED, warned_at - killed_at)
    again = max(struck.parent.glob(f"{CONTROLLER_LOG}*"), key=lambda path: path.stat().st_mtime)
    report.add(STARTED, logged_at(again, "Started training worker group") - killed_at)


def watch(training: Training, report: Report) -> None:
    """What those who watch cost beside those who train, while nothing happens."""
    wait_until(lambda: len(training.steps()) > 20)
    ranks = [training.rank(number) for number in (0, 1)]
    driver, controller = driver_process(), controller_process()

    def spent() -> dict[str, float]:
        return {
            "the workers": sum(seconds(psutil.Process(rank["pid"])) for rank in ranks),
            "the driver": seconds(driver),
            "Ray Train's controller": seconds(controller),
            "listeners in the workers": sum(listening(rank) for rank in ranks),
        }

    begin = spent()
    time.sleep(WATCHED_S)
    end = spent()
    used = {who: end[who] - begin[who] for who in end}
    trained = used.pop("the workers")
    for who, cpu_s in used.items():
        report.add(f"{who}, % of the workers' CPU time", 100 * cpu_s / trained)
    report.figure("watch_cpu_pct", 100 * sum(used.values()) / trained)


def mirror(folder: Path, server: str, report: Report, number: int) -> None:
    """How fast three trainings are: where MLflow is well, where it is slow, where nobody is."""
    with FaultProxy(server, latency_s=SLOW_MLFLOW_S) as slow:
        addresses = {WELL: server, SLOW: slow.url, ABSENT: f"http://127.0.0.1:{free_port()}"}
        # Who is first differs from round to round.
        turns = list(addresses)[number % 3 :] + list(addresses)[: number % 3]
        for which in turns:
            with Training(folder / which.split(",")[0], addresses[which]) as training:
                wait_until(lambda: len(training.steps()) > 20)
                time.sleep(MIRRORED_S)
                steps = training.steps()[20:]
            report.add(which, (len(steps) - 1) / (steps[-1][1] - steps[0][1]))


def driver_process() -> psutil.Process:
    """The process that runs the training, on this machine."""
    return child(psutil.Process(), "train_core.engine.driver_process")


def controller_process() -> psutil.Process:
    """Ray Train's controller of the attempt that is going on."""
    return child(driver_process(), "ray::TrainController")


def controller_log() -> Path:
    """What the controller writes: a line of JSON for each message."""
    (found,) = [
        Path(file.path) for file in controller_process().open_files() if CONTROLLER_LOG in file.path
    ]
    return found


def logged_at(log: Path, text: str) -> float:
    """When it first wrote a message that has the text."""
    entries = map(json.loads, log.read_text().splitlines())
    return next(float(one["timestamp_ns"]) / 1e9 for one in entries if text in one["message"])


def child(process: psutil.Process, title: str) -> psutil.Process:
    """The process below this one that is called so."""
    for one in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(title in argument for argument in one.cmdline()[:3]):
                return one
    raise RuntimeError(f"there is no {title} below {process}")


def seconds(process: psutil.Process) -> float:
    """CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def listening(rank: dict[str, Any]) -> float:
    """CPU seconds of the thread that listens for a request to stop."""
    ids = {number for name, number in rank["threads"].items() if name == "stop-listener"}
    threads = psutil.Process(rank["pid"]).threads()
    return float(sum(one.user_time + one.system_time for one in threads if one.id in ids))


def stock(folder: Path, report: Report) -> None:
    """Start stock Ray Train once."""
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.recovery.stock", str(folder)]
    done = subprocess.run(
        [*command, str(STATE_MB), str(BATCH_SIZE)], check=True, capture_output=True, text=True
    )
    report.add(STOCK, float(done.stdout.splitlines()[-1]))


def wait_until(what: Callable[[], bool]) -> None:
    """Raise RuntimeError if it does not come."""
    deadline = time.monotonic() + _WITHIN_S
    while not what():
        if time.monotonic() > deadline:
            raise RuntimeError(f"it did not come within {_WITHIN_S:g} s")
        time.sleep(0.01)


def main() -> None:
    """Measure, print the table and the line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    report, moments = Report(), random.Random(0)
    report.figures = dict.fromkeys(
        (
            *("recovery_vs_stock_start", "work_lost_s", "detect_s", "watch_cpu_pct"),
            *("speed_with_mlflow_slow", "speed_with_mlflow_absent"),
        )
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        mlflow_server(Path(scratch)) as server,
    ):
        for number in range(asked.rounds):
            print(f"round {number + 1} of {asked.rounds}", flush=True)
            with Training(Path(scratch, f"ours-{number}")) as training:
                if number == 0:
                    watch(training, report)
                for _ in range(KILLS_A_ROUND):
                    kill_once(training, report, moments.uniform(3, 6))
            stock(Path(scratch, f"stock-{number}"), report)
            mirror(Path(scratch, f"mirrored-{number}"), server, report, number)
    report.figure("recovery_vs_stock_start", report.median(RECOVERED) / report.median(STOCK))
    report.figure("work_lost_s", max(report.series[LOST]))
    report.figure("detect_s", max(report.series[DETECTED]))
    for which, name in ((SLOW, "speed_with_mlflow_slow"), (ABSENT, "speed_with_mlflow_absent")):
        report.figure(name, report.median(which) / report.median(WELL))
    memory_gib = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    print(f"\n{platform.processor() or platform.machine()}, {cores} cores, {memory_gib:.0f} GiB")
    print("\n".join(report.lines()))
    print(json.dumps(report.figures))


if __name__ == "__main__":
    main()
