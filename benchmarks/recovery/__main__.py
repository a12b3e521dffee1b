"""How soon a training goes on when a worker was killed, and what watching costs.

`make bench-recovery`. Trainings of two workers that commit each second have a worker killed by
SIGKILL at random moments: ours without and with processes that fetch data, then stock Ray Train at
its defaults. Three trainings run beside an MLflow that is well, slow, or not there. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.recovery.notes import NUM_RANKS, Notes, wait_until
from benchmarks.report import Report
from benchmarks.services import free_port, mlflow_server
from tests.storage.doubles.fault_proxy import FaultProxy
from train_core import TrainConfig
from train_core.client.driver_handle import Driver
from train_core.errors import StoppedError
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest
from train_core.stages import TRAIN

KILLS, STOCK_KILLS, MIRROR_ROUNDS = 20, 6, 2
WATCHED_S, MIRRORED_S = 30.0, 20.0
SLOW_MLFLOW_S = 10.0
STATE_MB, BATCH_SIZE = 14.0, 64

RECOVERED = "from SIGKILL until all ranks have done a new step, s"
FETCHING = "the same with two processes a rank that fetch data, s"
ALL = "both together, s"
WARNED = "from SIGKILL to the driver's warning, s"
STEPS = "steps done again"
LOST = "work done again, s"
STOCK = "stock Ray Train, from SIGKILL until all ranks have done a new step, s"
STOCK_LOST = "stock Ray Train, work done again, s"
IMPORTED = "import torch in a process of its own, s"
WELL = "MLflow answers at once, steps/s"
SLOW = "MLflow takes ten seconds for an answer, steps/s"
ABSENT = "nobody listens where MLflow should be, steps/s"


class Training:
    """One of ours, in a thread, with what it notes of its steps."""

    def __init__(self, folder: Path, tracking_uri: str = "", **config: Any) -> None:
        self.notes = Notes(folder / "notes")
        self.notes.folder.mkdir(parents=True)
        self.log: list[tuple[float, str]] = []
        asked = TrainConfig(
            workload="benchmarks.recovery.workload:Noted",
            settings={"state_mb": STATE_MB, "notes": str(self.notes.folder)},
            batch_size=BATCH_SIZE,
            num_workers=NUM_RANKS,
            checkpoint_every_s=1,
            checkpoint_every_epochs=0,
            gpus_per_worker=0,
            monitor="validation/loss",
            monitor_order="min",
            **config,
        )
        request = DriverRequest(
            storage=str(folder / "runs"), run="run", config=asked, tracking_uri=tracking_uri
        )
        self.driver = Driver.start(request, lambda line: self.log.append((time.time(), line)))
        self._thread = threading.Thread(target=self._train)

    def __enter__(self) -> Self:
        self.driver.prepared()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close(EndStatus.KILLED)
        self._thread.join()

    def warned_at(self, after: float) -> float:
        """When the driver first said after that moment that it begins again."""
        found = (at for at, line in self.log if at > after and "begins again" in line)
        wait_until(lambda: any("begins again" in line for at, line in self.log if at > after))
        return next(found)

    def _train(self) -> None:
        with suppress(StoppedError):
            self.driver.ask(TRAIN, TRAIN.arguments())


def import_torch(report: Report) -> None:
    """How fast the machine is: a recovery is mostly imports."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    report.add(IMPORTED, time.perf_counter() - begin)


def kill_ours(folder: Path, report: Report, drawn: random.Random, kills: int) -> None:
    """Half of the kills meet ranks with processes that fetch data."""
    for data_workers, series in ((0, RECOVERED), (2, FETCHING)):
        with Training(folder / f"fetching-{data_workers}", data_workers=data_workers) as training:
            if not data_workers:
                watch(training, report)
            for _ in range(kills // 2):
                kill = training.notes.kill_once(drawn)
                report.add(series, kill.recovered_s)
                report.add(STEPS, kill.steps_lost)
                report.add(LOST, kill.work_lost_s)
                report.add(WARNED, training.warned_at(kill.at) - kill.at)


def kill_stock(folder: Path, report: Report, drawn: random.Random, kills: int) -> None:
    """The same done to stock Ray Train."""
    notes = Notes(folder / "notes")
    notes.folder.mkdir(parents=True)
    with stock_training(folder, notes.folder):
        for _ in range(kills):
            kill = notes.kill_once(drawn)
            report.add(STOCK, kill.recovered_s)
            report.add(STOCK_LOST, kill.work_lost_s)


@contextmanager
def stock_training(folder: Path, notes: Path) -> Iterator[None]:
    """Stock Ray Train in a process of its own, which is ended with all that it started."""
    command = [sys.executable, "-m", "benchmarks.peers.ray_recovery", str(folder), str(notes)]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*command, str(STATE_MB), str(BATCH_SIZE)], stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield
        finally:
            below = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for one in below:
                with suppress(psutil.NoSuchProcess):
                    one.kill()


def watch(training: Training, report: Report) -> None:
    """What those who watch cost beside those who train, while nothing happens."""
    wait_until(lambda: len(training.notes.steps()) > 20)
    ranks = [training.notes.rank(number) for number in range(NUM_RANKS)]
    pids = {rank["pid"] for rank in ranks}
    driver = child(psutil.Process(), "train_core.driver.process_entry")
    # Those of Ray that do not train, and hold no copy of a rank.
    of_ray = [one for one in driver.children(recursive=True) if one.pid not in pids]

    def spent() -> dict[str, float]:
        return {
            "the workers": sum(seconds(psutil.Process(pid)) for pid in pids),
            "the driver": seconds(driver),
            "Ray's processes": sum(seconds(one) for one in of_ray),
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
        # Another contender begins each round.
        turns = list(addresses)[number % 3 :] + list(addresses)[: number % 3]
        for which in turns:
            with Training(folder / which.split(",")[0], addresses[which]) as training:
                wait_until(lambda: len(training.notes.steps()) > 20)
                time.sleep(MIRRORED_S)
                steps = training.notes.steps()[20:]
            report.add(which, (len(steps) - 1) / (steps[-1].at - steps[0].at))


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
    ids = {number for name, number in rank["threads"].items() if name == "stop-request-poller"}
    threads = psutil.Process(rank["pid"]).threads()
    return float(sum(one.user_time + one.system_time for one in threads if one.id in ids))


def main() -> None:
    """Measure, print the table and the line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=KILLS, help="of ours, half with data workers")
    parser.add_argument("--stock-kills", type=int, default=STOCK_KILLS)
    parser.add_argument("--mirror-rounds", type=int, default=MIRROR_ROUNDS)
    asked = parser.parse_args()
    drawn = random.Random(0)
    report = Report(
        (
            *("recovery_s", "recovery_p95_s", "recovery_vs_stock_restart"),
            *("steps_lost", "work_lost_s"),
            *("detect_s", "watch_cpu_pct", "speed_with_mlflow_slow", "speed_with_mlflow_absent"),
        )
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        mlflow_server(Path(scratch)) as server,
    ):
        import_torch(report)
        kill_ours(Path(scratch, "ours"), report, drawn, asked.kills)
        import_torch(report)
        kill_stock(Path(scratch, "stock"), report, drawn, asked.stock_kills)
        for number in range(asked.mirror_rounds):
            mirror(Path(scratch, f"mirrored-{number}"), server, report, number)
    report.add(ALL, *report.series[RECOVERED], *report.series[FETCHING])
    median = report.median(ALL)
    report.figure("recovery_s", median)
    report.figure("recovery_p95_s", report.p95(ALL))
    report.figure("steps_lost", sum(report.series[STEPS]))
    report.figure("recovery_vs_stock_restart", median / report.median(STOCK))
    report.figure("work_lost_s", max(report.series[LOST]))
    report.figure("detect_s", max(report.series[WARNED]))
    for which, name in ((SLOW, "speed_with_mlflow_slow"), (ABSENT, "speed_with_mlflow_absent")):
        if asked.mirror_rounds:
            report.figure(name, report.median(which) / report.median(WELL))
    memory_gib = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    print(f"\n{platform.processor() or platform.machine()}, {cores} cores, {memory_gib:.0f} GiB")
    print("\n".join(report.lines()))
    print(json.dumps(report.figures))


if __name__ == "__main__":
    main()
