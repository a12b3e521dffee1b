"""A pipeline of the command line: where it lives, what it says, what becomes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow.parquet as pq

from tests import commands
from tests.chaos.standing import SHOWN, is_held
from tests.flows.mlflow_side import shown_at
from tests.rank.digests import digest_of_training
from tests.waiting import wait_for
from train_core.champion.log import ModelLog
from train_core.champion.of_run import gates_of
from train_core.policy.champion.gate_decision import Outcome
from train_core.results import Report
from train_core.storage.cleanup.orphans import find_orphans
from train_core.storage.coordination import job_mailbox
from train_core.storage.coordination.lease import newest_attempt
from train_core.storage.coordination.pins import MLFLOW_MODEL, REGISTERED_MODEL, valid_pins
from train_core.storage.objects.backends.disk_files import TEMPORARY
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder

WITHIN_S = 300.0
LOOK_EVERY_S = 1.0
FELT_S = 12.0
"""How long who is held is waited for; longer than ranks wait for one that hangs."""
JOB_ENDS_WITHIN_S = 5.0
GRACE_S = 30.0
"""What Ray's own processes may take to end after everything else."""

# 1257 samples make 20 steps an epoch; checkpoints at 7, 14, 20, 21, 28, 35, 40, …
PARAMETERS = (
    *("retrain", "--workload", "tests.chaos.held:HeldDigits", "--epochs", "3"),
    *("--batch-size", "64", "--num-shards", "4"),
    *("--checkpoint-every-steps", "7", "--gpus-per-worker", "0"),
    *("--checkpoint-backpressure", "wait", "--spares", "1"),
    # So each of them becomes champion, although it is as good as the one before.
    "--min-improvement=-1",
)


@dataclass
class House:
    """Where the pipelines of one suite live: a home of a user's, and storages."""

    home: Path
    environment: dict[str, str]
    storage: str
    ray_address: str = ""
    """Of the cluster that trains, if it is not a Ray of each pipeline's own."""
    hang_timeout_s: float = 10.0
    num_workers: int = 2
    """They share two cores."""
    eval_batch_size: int = 0
    """0: each rank has two batches of validation, and is held in the first."""
    object_store: Path | None = None
    """The files of the S3 server of `tests/object-store.sh`, if there is one."""

    def folder(self, run: str) -> RunFolder:
        return RunFolder(self.storage, run)

    @property
    def tracking_uri(self) -> str:
        """Where the pipelines' MLflow is: a database at home, if the environment does not say."""
        at_home = f"sqlite:///{self.home}/.evertrain/mlflow.db"
        return self.environment.get("MLFLOW_TRACKING_URI", at_home)

    def mirror(self, run: str) -> None:
        """Bring MLflow up to date, as docs/operations.md has it."""
        where = ("--storage", self.storage, "--tracking-uri", self.tracking_uri)
        command = [*commands.EVERTRAIN, "mirror", run, *where]
        commands.succeed(command, cwd=self.home, env=self.environment)

    def command(self, run: str, told: dict[str, str] | None = None) -> list[str]:
        """The command, whose ranks find what they are told in their environment."""
        more = ["--run", run, "--storage", self.storage]
        more += ["--hang-timeout-s", f"{self.hang_timeout_s:g}"]
        more += ["--num-workers", f"{self.num_workers}"]
        more += ["--cpus-per-worker", f"{20 // self.num_workers / 10:g}"]
        more += ["--eval-batch-size", f"{self.eval_batch_size or 90 // self.num_workers}"]
        if self.ray_address:
            runtime_env = json.dumps({"env_vars": told or {}})
            more += ["--ray-address", self.ray_address, "--runtime-env", runtime_env]
        module = "tests.chaos.held_flow" if told else "evertrain_flows.cli"
        return [sys.executable, "-m", module, *PARAMETERS, *more]


def undisturbed(house: House, run: str = "undisturbed") -> dict[str, Any]:
    """What becomes of a pipeline that nobody strikes."""
    commands.succeed(house.command(run), cwd=house.home, env=house.environment)
    return outcome(house, run)


def outcome(house: House, run: str) -> dict[str, Any]:
    """All that two equal pipelines have in common."""
    folder = house.folder(run)
    report = folder.report()
    assert report is not None
    rows = []
    for uri in report["predictions"]["files"]:
        where, _, name = uri.rpartition("/")
        with Store(where).fs.open(Store(where).path(name), "rb") as file:
            rows += pq.read_table(file).to_pylist()
    return {
        "training": digest_of_training(folder),
        "evaluations": [[e["split"], e["metrics"]] for e in report["evaluations"]],
        "best": report["best"]["step"],
        "predictions": sorted(rows, key=lambda row: str(row["id"])),
        "mlflow": shown_at(house.tracking_uri, folder.url),
    }


class Started:
    """A pipeline of the command line, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = ""
        self.belongings: set[psutil.Process] = set()
        """All processes that it was seen to have started, and those that they started."""
        self._changed = threading.Condition()
        assert process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(process.stdout,))
        self._reader.start()

    def look(self) -> None:
        """See which processes there are; who is killed starts others."""
        with suppress(psutil.NoSuchProcess):
            self.belongings |= set(psutil.Process(self.process.pid).children(recursive=True))

    def wait_for(self, stage: str, notes: Path) -> None:
        """Wait until the stage is reached."""
        if is_held(stage):
            self.wait((notes / "held").exists)
        else:
            self.wait(lambda: SHOWN[stage] in self.log.splitlines())

    def wait_until_felt(self, held: Path) -> None:
        """Wait until the process that is held is gone, or for FELT_S."""
        if held.exists():
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                psutil.Process(int(held.read_text())).wait(FELT_S)

    def wait(self, what: Callable[[], object]) -> None:
        """Wait until it is true, as it has to be before the pipeline ends."""
        wait_for(what, WITHIN_S, lambda: self.log[-2000:], ended=self.process.poll)

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self.log += line

    def end(self) -> int:
        """Its exit code; one that does not end is killed, which is no success."""
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            self.look()
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(LOOK_EVERY_S)
        self.log += f"\nit did not end within {WITHIN_S:g} s"
        self.process.kill()
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@contextmanager
def started(command: list[str], home: Path, environment: dict[str, str]) -> Iterator[Started]:
    """The command, which is killed at the end if it still runs."""
    with subprocess.Popen(
        command,
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        running = Started(process)
        try:
            yield running
        finally:
            running.close()


def unfinished(folder: RunFolder, *, job_ends_within_s: float = 0) -> list[str]:
    """What lies in the run folder and no manifest counts, and who seems to read or call there.

    A job on a cluster ends a moment after who called it.
    """
    deadline = time.monotonic() + job_ends_within_s
    while job_mailbox.jobs_with_calls(folder.store) and time.monotonic() < deadline:
        time.sleep(0.1)
    keys = [orphan.key for orphan in find_orphans(folder, newest_attempt(folder.store) + 1)]
    # The model's and the version's are meant to stay.
    keys += [
        str(pin)
        for pin in valid_pins(folder.store)
        if pin.who not in (MLFLOW_MODEL, REGISTERED_MODEL)
    ]
    keys += gate_faults(folder)
    keys += [f"calls/{job}" for job in job_mailbox.jobs_with_calls(folder.store)]
    if folder.store.is_local:
        keys += [str(path) for path in Path(folder.url).rglob(f"{TEMPORARY}*")]
    return keys


def gate_faults(folder: RunFolder) -> list[str]:
    """What contradicts that the run's gate left one version, decided on, and one champion."""
    report = folder.report()
    gate = Report.model_validate(report).gate if report else None
    if gate is None:
        return []
    history = ModelLog(folder.storage, gate.decision.challenger.model).read()
    own = [one for one in history.versions.values() if one.run == folder.name]
    entries = history.entries
    found = []
    if own != [gate.decision.challenger]:
        found.append(f"versions of the run: {[one.address for one in own]}")
    if gate.decision not in [one.result.decision for one in gates_of(folder)]:
        found.append("the report's decision is not the run's newest")
    if gate.decision.outcome == Outcome.PROMOTE and gate.entry not in entries:
        found.append(f"{gate.decision.challenger.address} was to be champion")
    if [entry.number for entry in entries] != list(range(1, len(entries) + 1)):
        found.append(f"numbers of champions: {[entry.number for entry in entries]}")
    return found


def remaining(processes: set[psutil.Process]) -> list[str]:
    """Those that still run when the grace is over; they are killed then."""
    _, alive = psutil.wait_procs(processes, timeout=GRACE_S)
    left = []
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
                process.kill()
    return left
