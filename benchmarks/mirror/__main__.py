"""What mirroring to MLflow costs the training, and how fast it sends beside MLflow's own client.

`make bench-mirror`, on a machine that does nothing else. A loop with ten metrics a step and a
commit each second runs without and with a mirror in another process, by turns; both write to the
same kind of disk. Then a whole journal is mirrored, and the same points are sent by MLflow's
`log_batch` in a tight loop, into SQLite both. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.mirror.loop import GO, METRICS_PER_STEP, metrics_of_step
from benchmarks.report import Report
from evertrain_flows.databases import create_tracking_database
from tests.tracking.run_builder import BEGIN_S, RunBuilder
from train_core.policy.end_status import EndStatus
from train_core.policy.metric_names import SAMPLES_PER_S
from train_core.storage.records.journal import Entry
from train_core.storage.run_folder import RunFolder
from train_core.timing import TrackingTiming
from train_core.tracking.delivery.mirror import Mirror
from train_core.tracking.mlflow.client_settings import REPEATED_BY_CALLER

ROUNDS, LOOP_STEPS, SENT_STEPS = 5, 1000, 5000
POINTS_PER_REQUEST = 1000
"""As many as MLflow takes."""
SENT_WITHIN_S = 1800.0

ALONE = "a loop that nobody mirrors, ms a step"
MIRRORED = "the same with a mirror to SQLite, ms a step"
OVERHEAD = "the second beside the first, %"
SENT = "a journal mirrored, points/s"
LOG_BATCH = "MLflow's log_batch in a tight loop, points/s"
RATIO = "the first beside the second"
WITH_TAG = "log_batch with a tag in each request, points/s"
RATIO_WITH_TAG = "the mirrored journal beside that"


def loop_ms(folder: Path, steps: int, tracking_uri: str) -> float:
    """Milliseconds a step of a loop in a process of its own, mirrored by this one if so asked."""
    storage, run = str(folder), "mirrored" if tracking_uri else "alone"
    command = [sys.executable, "-m", "benchmarks.mirror.loop", storage, run, "--steps", str(steps)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        run_folder = RunFolder(storage, run)
        while not run_folder.exists():
            if process.poll() is not None:
                raise RuntimeError("the loop ended before it began")
            time.sleep(0.05)
        mirror = Mirror(run_folder, tracking_uri, "bench") if tracking_uri else None
        if mirror:
            mirror.start()
            # It loads MLflow for seconds, as the driver does while Ray starts.
            mirror.flush(SENT_WITHIN_S)
        run_folder.store.write(GO, b"")
        shown, _ = process.communicate()
        if mirror and not (mirror.flush(SENT_WITHIN_S) and mirror.close(EndStatus.FINISHED)):
            raise RuntimeError("MLflow has not all of the loop's metrics")
    if process.returncode:
        raise RuntimeError(f"the loop ended with code {process.returncode}")
    return 1000 * float(json.loads(shown.splitlines()[-1])["total_s"]) / steps


def journal(steps: int) -> list[Entry]:
    """Entries with ten points each."""
    return [
        Entry(
            step=step,
            time=BEGIN_S + step,
            metrics=dict(metrics_of_step(step)),
            rates={SAMPLES_PER_S: 100.0},
        )
        for step in range(1, steps + 1)
    ]


def mirrored_per_s(folder: Path, entries: list[Entry], tracking_uri: str) -> float:
    """Points that a mirror sends in a second, from the commit to the last point in MLflow."""
    run = RunBuilder(RunFolder(str(folder), "sent"))
    # It looks for commits when it is asked to, and not while the last one is still written.
    asked = TrackingTiming(poll_s=SENT_WITHIN_S)
    mirror = Mirror(run.folder, tracking_uri, "bench", is_live=False, timing=asked)
    mirror.start()
    if not mirror.flush(SENT_WITHIN_S):
        raise RuntimeError("MLflow cannot be reached")
    run.commit(range(1, len(entries) + 1), entries=entries, validated=False)
    begin = time.perf_counter()
    sent = mirror.flush(SENT_WITHIN_S)
    spent_s = time.perf_counter() - begin
    if not (sent and mirror.close(EndStatus.KILLED)):
        raise RuntimeError("MLflow has not all of the journal")
    run.lease.release()
    return len(entries) * METRICS_PER_STEP / spent_s


def logged_per_s(entries: list[Entry], tracking_uri: str, *, with_tag: bool = False) -> float:
    """Points that `log_batch` sends in a second, in requests as large as MLflow takes.

    `with_tag`: each request sets a tag, too, as a mirror's does, which records how far it has come.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, RunTag

    client = MlflowClient(tracking_uri)
    run_id = client.create_run(client.create_experiment("tight")).info.run_id
    size = POINTS_PER_REQUEST - with_tag

    def send(points: list[Metric], step: int) -> None:
        tags = [RunTag("position", str(step))] if with_tag else []
        client.log_batch(run_id, points, tags=tags)

    begin = time.perf_counter()
    batch: list[Metric] = []
    for entry in entries:
        time_ms = round(entry.time * 1000)
        batch += [
            Metric(key, value, time_ms, entry.step)
            for key, value in (entry.metrics | entry.rates).items()
        ]
        if len(batch) >= size:
            send(batch[:size], entry.step)
            batch = batch[size:]
    if batch:
        send(batch, entries[-1].step)
    return len(entries) * METRICS_PER_STEP / (time.perf_counter() - begin)


def measure(scratch: Path, report: Report, *, rounds: int, loop_steps: int, steps: int) -> None:
    """Every contender once in each round, the order turned around after each."""
    empty = scratch / "empty.db"
    create_tracking_database(f"sqlite:///{empty}")

    def database(name: str) -> str:
        (scratch / name).mkdir()
        return f"sqlite:///{shutil.copy(empty, scratch / name / 'mlflow.db')}"

    entries = journal(steps)
    # Both load code when they are used first.
    mirrored_per_s(scratch / "warm-up", journal(10), database("warm-up-sent"))
    logged_per_s(journal(10), database("warm-up-logged"))
    for number in range(rounds):
        folder = scratch / f"round-{number}"
        uris = {ALONE: "", MIRRORED: database(f"loop-{number}")}
        order = list(uris) if number % 2 == 0 else list(uris)[::-1]
        for series in order:
            report.add(series, loop_ms(folder, loop_steps, uris[series]))
        alone, mirrored = report.series[ALONE][-1], report.series[MIRRORED][-1]
        report.add(OVERHEAD, 100 * (mirrored / alone - 1))
        uris = {
            SENT: database(f"sent-{number}"),
            LOG_BATCH: database(f"logged-{number}"),
            WITH_TAG: database(f"tagged-{number}"),
        }
        for series in list(uris) if number % 2 == 0 else list(uris)[::-1]:
            if series == SENT:
                report.add(series, mirrored_per_s(folder, entries, uris[series]))
            else:
                with_tag = series == WITH_TAG
                report.add(series, logged_per_s(entries, uris[series], with_tag=with_tag))
        report.add(RATIO, report.series[SENT][-1] / report.series[LOG_BATCH][-1])
        report.add(RATIO_WITH_TAG, report.series[SENT][-1] / report.series[WITH_TAG][-1])


def main() -> None:
    """Measure, print the table and the line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="in small, to see that it runs")
    asked = parser.parse_args()
    REPEATED_BY_CALLER.apply()
    report = Report(("loop_overhead_pct", "points_per_s_vs_log_batch"))
    sizes = {"rounds": asked.rounds, "loop_steps": LOOP_STEPS, "steps": SENT_STEPS}
    if asked.quick:
        sizes = {"rounds": 1, "loop_steps": 200, "steps": 300}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        measure(Path(scratch), report, **sizes)
    report.figure("loop_overhead_pct", report.median(OVERHEAD))
    report.figure("points_per_s_vs_log_batch", report.median(RATIO))
    memory_gib = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    print(f"\n{platform.processor() or platform.machine()}, {cores} cores, {memory_gib:.0f} GiB")
    print("\n".join(report.lines()))
    print(json.dumps(report.figures))


if __name__ == "__main__":
    main()
