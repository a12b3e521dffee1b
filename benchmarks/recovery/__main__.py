"""How soon a training goes on when a worker was killed, and what watching costs.

`make bench-recovery`. Trainings that commit each second have a rank killed by SIGKILL at random
moments: ours with a spare, then with one thing otherwise, then stock Ray Train at its defaults. One
training has a rank killed every ten seconds. Three run beside an MLflow that is well, slow, or not
there. The last line is JSON.
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
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.recovery.notes import NUM_RANKS, Notes
from benchmarks.recovery.training import BATCH_SIZE, DRIVER, STATE_MB, Training, child
from benchmarks.report import Report
from benchmarks.services import free_port, mlflow_server
from tests.conftest import has_object_store, object_store_in
from tests.storage.doubles.fault_proxy import FaultProxy

KILLS, MORE_KILLS, STOCK_KILLS, MIRROR_ROUNDS = 40, 10, 6, 2
WATCHED_S, MIRRORED_S = 30.0, 20.0
FIRE_S, FIRE_EVERY_S = 600.0, 10.0
SLOW_MLFLOW_S = 10.0
S3_LATENCY_S = 0.025

UNTIL = "from SIGKILL until all ranks have ended a step beyond all done before, s"
RECOVERED = f"a spare is ready: {UNTIL}"
CONTENDERS: dict[str, dict[str, Any]] = {
    "140 MB of state": {"state_mb": 140.0},
    "three ranks": {"num_workers": 3},
    "four ranks": {"num_workers": 4},
    "two processes a rank that fetch data": {"data_workers": 2},
    "`dataset()` takes 3 s": {"dataset_s": 3.0},
    "S3, 25 ms away": {"is_on_s3": True},
    "no spare": {"spares": 0},
}
"""What is measured beside it, each with one thing that is otherwise."""
WARNED = "from SIGKILL to the driver's warning, s"
STEPS = "steps done again"
LOST = "work done again, s"
STOCK = f"stock Ray Train: {UNTIL}"
STOCK_LOST = "stock Ray Train, work done again, s"
IMPORTED = "import torch in a process of its own, s"
UNDISTURBED = "nobody is killed, steps/s"
UNDER_FIRE = f"a rank is killed every {FIRE_EVERY_S:g} s, new steps/s"
WELL = "MLflow answers at once, steps/s"
SLOW = "MLflow takes ten seconds for an answer, steps/s"
ABSENT = "nobody listens where MLflow should be, steps/s"


def import_torch(report: Report) -> None:
    """How fast the machine is: a recovery is mostly imports."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    report.add(IMPORTED, time.perf_counter() - begin)


def kill_ours(folder: Path, report: Report, drawn: random.Random, kills: int) -> None:
    """The figure: two ranks, a small state, a spare."""
    with Training(folder / "ours") as training:
        watch(training, report)
        for _ in range(kills):
            training.wait_until_steady()
            kill = training.notes.kill_once(drawn)
            report.add(RECOVERED, kill.recovered_s)
            report.add(STEPS, kill.steps_lost)
            report.add(LOST, kill.work_lost_s)
            report.add(WARNED, training.warned_at(kill.at) - kill.at)


def kill_others(
    folder: Path, report: Report, drawn: random.Random, kills: int, only: Sequence[str]
) -> None:
    """The same where one thing is otherwise."""
    for number, (name, otherwise) in enumerate(CONTENDERS.items()):
        if only and not any(one in name for one in only):
            continue
        with ExitStack() as used:
            config = dict(otherwise)
            if config.pop("is_on_s3", False):
                if not has_object_store():
                    report.note(f"{name}: not measured, there is no S3 server here")
                    continue
                config["storage"] = used.enter_context(_distant_bucket(folder / "store"))
            training = used.enter_context(Training(folder / f"other-{number}", **config))
            for _ in range(kills):
                training.wait_until_steady()
                kill = training.notes.kill_once(drawn)
                report.add(f"{name}: {UNTIL}", kill.recovered_s)
                report.add(f"{name}: {STEPS}", kill.steps_lost)


@contextmanager
def _distant_bucket(folder: Path) -> Iterator[str]:
    """A bucket of a real S3 server, each of whose answers comes later."""
    with object_store_in(folder) as bucket:
        near = os.environ["AWS_ENDPOINT_URL"]
        with FaultProxy(near, latency_s=S3_LATENCY_S) as distant:
            os.environ["AWS_ENDPOINT_URL"] = distant.url
            try:
                yield bucket
            finally:
                os.environ["AWS_ENDPOINT_URL"] = near


def train_under_fire(folder: Path, report: Report, drawn: random.Random, for_s: float) -> None:
    """Useful steps of a training whose ranks are killed again and again, beside undisturbed ones.

    Without the spares' imports there would be more: their CPU seconds are the trainings'.
    """
    with Training(folder / "fire") as training:
        notes = training.notes
        notes.wait_for_steps(20)
        # Before the first spare, which is started after 30 s.
        began, at = notes.newest(), time.monotonic()
        time.sleep(15)
        undisturbed = (notes.newest() - began) / (time.monotonic() - at)
        training.wait_until_steady()
        spares = {one.pid: seconds(one) for one in training.ready_spares()}
        began, at, before, kills = notes.newest(), time.monotonic(), sum(spares.values()), 0
        while time.monotonic() < at + for_s:
            next_at = time.monotonic() + FIRE_EVERY_S
            with suppress(ProcessLookupError):
                os.kill(notes.rank(drawn.randrange(NUM_RANKS))["pid"], signal.SIGKILL)
                kills += 1
            while time.monotonic() < next_at:
                time.sleep(0.5)
                with suppress(psutil.NoSuchProcess):
                    spares |= {one.pid: seconds(one) for one, _ in training.workers_beside()}
        took_s = time.monotonic() - at
        under_fire = (notes.newest() - began) / took_s
    report.add(UNDISTURBED, undisturbed)
    report.add(UNDER_FIRE, under_fire)
    share = (sum(spares.values()) - before) / took_s / len(os.sched_getaffinity(0))
    report.figure("goodput_under_fire", under_fire / undisturbed)
    report.figure("goodput_without_imports", under_fire / undisturbed / (1 - share))
    report.note(f"{kills} kills in {took_s:.0f} s; spares took {100 * share:.0f}% of the cores")


def kill_stock(folder: Path, report: Report, drawn: random.Random, kills: int) -> None:
    """The same done to stock Ray Train."""
    notes = Notes(folder / "notes")
    with stock_training(folder, notes.folder):
        for _ in range(kills):
            notes.wait_for_steps(5)
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
    training.notes.wait_for_steps(20)
    ranks = [training.notes.rank(number) for number in range(NUM_RANKS)]
    pids = {rank["pid"] for rank in ranks}
    driver = child(psutil.Process(), DRIVER)
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
            name, address = which.split(",")[0], addresses[which]
            with Training(folder / name, tracking_uri=address, spares=0) as training:
                training.notes.wait_for_steps(20)
                time.sleep(MIRRORED_S)
                steps = training.notes.steps()[20:]
            report.add(which, (len(steps) - 1) / (steps[-1].at - steps[0].at))


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
    parser.add_argument("--kills", type=int, default=KILLS, help="for the figure")
    parser.add_argument("--more-kills", type=int, default=MORE_KILLS, help="of each other one")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        help="of the other ones, those whose names have one of these",
    )
    parser.add_argument("--stock-kills", type=int, default=STOCK_KILLS)
    parser.add_argument("--fire-s", type=float, default=FIRE_S, help="how long ranks are killed")
    parser.add_argument("--mirror-rounds", type=int, default=MIRROR_ROUNDS)
    asked = parser.parse_args()
    drawn = random.Random(0)
    report = Report(
        (
            *("recovery_new_step_s", "recovery_new_step_p95_s", "recovery_vs_stock_restart"),
            *("steps_lost", "work_lost_s", "goodput_under_fire", "goodput_without_imports"),
            *("detect_s", "watch_cpu_pct", "speed_with_mlflow_slow", "speed_with_mlflow_absent"),
        )
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        mlflow_server(Path(scratch)) as server,
    ):
        folder = Path(scratch)
        import_torch(report)
        if asked.kills:
            kill_ours(folder, report, drawn, asked.kills)
        if asked.more_kills:
            kill_others(folder, report, drawn, asked.more_kills, asked.only)
        import_torch(report)
        if asked.stock_kills:
            kill_stock(folder / "stock", report, drawn, asked.stock_kills)
        if asked.fire_s:
            train_under_fire(folder, report, drawn, asked.fire_s)
        for number in range(asked.mirror_rounds):
            mirror(folder / f"mirrored-{number}", server, report, number)
    if asked.kills:
        report.figure("recovery_new_step_s", report.median(RECOVERED))
        report.figure("recovery_new_step_p95_s", report.p95(RECOVERED))
        report.figure("steps_lost", sum(report.series[STEPS]))
        report.figure("work_lost_s", max(report.series[LOST]))
        report.figure("detect_s", max(report.series[WARNED]))
    if asked.kills and asked.stock_kills:
        ratio = report.median(RECOVERED) / report.median(STOCK)
        report.figure("recovery_vs_stock_restart", ratio)
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
