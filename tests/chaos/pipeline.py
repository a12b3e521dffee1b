"""A pipeline that is struck at a stage, brought to its end, compared with an undisturbed one."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow.parquet as pq

from tests.chaos.standing import HOLD, NOTES
from tests.engine.digests import digest_of_training
from tests.flows.mlflow_side import shown_at
from tests.flows.prefect_side import shown_in_prefect
from train_core.storage import calls
from train_core.storage.journal import read_segments
from train_core.storage.lease import newest_attempt
from train_core.storage.local_disk import TEMPORARY
from train_core.storage.names import REPORT_JSON
from train_core.storage.orphans import find_orphans
from train_core.storage.pins import MLFLOW_MODEL, valid_pins
from train_core.storage.run_folder import RunFolder
from train_core.storage.store import Store

ROOT = Path(__file__).parents[2]
WITHIN_S = 300.0
LOOK_EVERY_S = 1.0
FELT_S = 12.0
"""How long who is held is waited for; longer than ranks wait for one that hangs."""
GRACE_S = 30.0
"""What Ray's own processes may take to end after everything else."""

# 1257 samples make 20 steps an epoch; checkpoints at 7, 14, 20, 21, 28, 35, 40, …
PARAMETERS = (
    *("retrain", "--workload", "tests.chaos.held:HeldDigits", "--epochs", "3"),
    *("--batch-size", "64", "--num-shards", "4", "--num-workers", "2"),
    # Each rank has two batches of validation, and is held in the first.
    *("--eval-batch-size", "45"),
    *("--checkpoint-every-steps", "7", "--gpus-per-worker", "0"),
    *("--checkpoint-backpressure", "wait", "--hang-timeout-s", "10"),
)
HELD = (
    *("set-up", "first step", "mid-epoch", "snapshot", "upload"),
    *("before the manifest", "after the manifest", "validation"),
)
"""Stages at which a rank stands still until it is struck."""
SELECTION, INFERENCE = "select", "inference"
"""The stages at which the flow itself stands still, and who scores new data."""
SHOWN = {"evaluation": "evaluate validation", "report": "publish"}
"""Stages that the command line tells, and what it says."""
AFTER_TRAINING = ("evaluation", SELECTION, INFERENCE, "report")


@dataclass(frozen=True)
class Fault:
    """Who is struck, at which stage, and how."""

    victim: str
    stage: str
    rank: int = 0
    """Who reaches the stage; the other ranks wait for it."""
    how: signal.Signals = signal.SIGKILL
    after_s: float = 0.0
    """If the moment is random: seconds after the command began."""

    @property
    def must_heal(self) -> bool:
        """Whether the pipeline has to come to its end by itself."""
        # At a moment drawn by chance the command may not have a flow yet.
        return self.victim != "the flow" and not self.after_s

    def __str__(self) -> str:
        when = f" after {self.after_s:.1f} s" if self.after_s else ""
        return f"{self.how.name} of {self.victim}{when}"


@dataclass(frozen=True)
class Recovery:
    """What became of it."""

    fault: Fault
    struck: bool
    """Whether there was somebody to strike, at a moment drawn by chance."""
    again: bool
    """Whether the run had to be started again by its name."""
    seconds: float
    """From the blow to the next new step, or to the report if all steps were done."""
    steps_repeated: int
    differences: list[str]
    left_behind: list[str]

    @property
    def faults(self) -> list[str]:
        """What differs, what is left, and that somebody had to start it again."""
        not_healed = ["it did not go on by itself"] if self.again and self.fault.must_heal else []
        return [*self.differences, *not_healed, *(f"left: {what}" for what in self.left_behind)]

    @property
    def is_good(self) -> bool:
        return not self.faults


@dataclass
class House:
    """Where the pipelines of one suite live: a home of a user's, and storages."""

    home: Path
    environment: dict[str, str]
    storage: str
    ray_address: str = ""
    """Of the cluster that trains, if it is not a Ray of each pipeline's own."""

    def folder(self, run: str) -> RunFolder:
        return RunFolder(self.storage, run)

    @property
    def tracking_uri(self) -> str:
        """Where the pipelines' MLflow is: a database at home, if the environment does not say."""
        at_home = f"sqlite:///{self.home}/.evertrain/mlflow.db"
        return self.environment.get("MLFLOW_TRACKING_URI", at_home)

    def command(self, run: str, told: dict[str, str] | None = None) -> list[str]:
        """The command, whose ranks find what they are told in their environment."""
        more = ["--run", run, "--storage", self.storage]
        if self.ray_address:
            runtime_env = json.dumps({"env_vars": told or {}})
            more += ["--ray-address", self.ray_address, "--runtime-env", runtime_env]
        module = "tests.chaos.held_flow" if told else "flows.cli"
        return [sys.executable, "-m", module, *PARAMETERS, *more]


def undisturbed(house: House, run: str = "undisturbed") -> dict[str, Any]:
    """What becomes of a pipeline that nobody strikes."""
    done = subprocess.run(
        house.command(run),
        cwd=house.home,
        env=house.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
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


def strike(house: House, fault: Fault, run: str, reference: dict[str, Any]) -> Recovery:
    """Strike a new pipeline, bring it to its end, and compare it with the reference."""
    # Short: Ray's sockets lie in it.
    with tempfile.TemporaryDirectory(
        prefix="c-", dir="/tmp", ignore_cleanup_errors=True
    ) as scratch:
        return _strike(house, fault, run, reference, Path(scratch))


def _strike(
    house: House, fault: Fault, run: str, reference: dict[str, Any], scratch: Path
) -> Recovery:
    folder = house.folder(run)
    notes = house.home / f"notes-{run}"
    notes.mkdir()
    is_held = fault.stage in (*HELD, SELECTION, INFERENCE)
    hold = f"{fault.stage}@{fault.rank}" if is_held else "nothing"
    told = {HOLD: hold, NOTES: str(notes)}
    environment = house.environment | told | {"TMPDIR": str(scratch)}
    again = False
    with started(house.command(run, told), house.home, environment) as first:
        if fault.after_s:
            with suppress(subprocess.TimeoutExpired):
                first.process.wait(fault.after_s)
        else:
            first.wait_for(fault.stage, notes)
        first.look()
        if is_held:
            # A step is shown in the next one, about twice a second.
            time.sleep(1)
        at = (folder.live() or {}).get("step", 0)
        struck = False
        for victim in victims(fault, first.process, notes, folder):
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(fault.how)
                struck = True
        assert struck or fault.after_s or fault.victim == "nobody", f"nobody was {fault.victim}"
        struck_at = time.time()
        # Who is held dies of it, or lives on with what is left; a request to stop is heard.
        first.wait_until_felt(notes / f"pid-{fault.rank}")
        (notes / "go-on").touch()
        code = first.end()
    log, left = first.log, remaining(first.belongings)
    if code != 0:
        again = True
        with started(house.command(run, told), house.home, environment) as second:
            code = second.end()
            log = second.log
        left += remaining(second.belongings)
    differences = [f"exit code {code}: {log[-500:]}"] if code else []
    if not code:
        found = outcome(house, run)
        differences = [name for name in reference if found[name] != reference[name]]
    shown = shown_in_prefect(house.home, run)
    # On a cluster another flow may have attached to the job: a dead one is not told from it.
    if shown[-1:] != ["COMPLETED"] or ("RUNNING" in shown and not house.ray_address):
        differences.append(f"what Prefect shows: {shown}")
    if fault.stage in HELD and not again and "warning: " not in log:
        differences.append("what the terminal says: nothing warns of it")
    # Ray keeps the logs of its sessions there, and torch makes a folder that stays empty.
    kept = ("ray", "torchinductor_")
    left += [f"{scratch}/{n}" for n in sorted(os.listdir(scratch)) if not n.startswith(kept)]
    left += unfinished(folder)
    seconds = math.nan if code else recovered_at(folder, at) - struck_at
    return Recovery(fault, struck, again, seconds, repeated(house, run, at), differences, left)


def victims(
    fault: Fault, flow: subprocess.Popen[str], notes: Path, folder: RunFolder
) -> list[psutil.Process]:
    """The processes that are struck."""
    if fault.victim == "nobody" or flow.poll() is not None:
        return []
    if fault.victim == "the job":
        wanted = ["train_core.engine.job_process", folder.storage, folder.name]
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if (process.info["cmdline"] or [])[2:5] == wanted
        ]
    if fault.victim == "the flow":
        return [psutil.Process(flow.pid)]
    of = {"all ranks": "pid-*", "who scores": "pid-0"}
    if fault.victim in of or fault.victim.startswith("rank "):
        files = notes.glob(of.get(fault.victim, f"pid-{fault.victim[5:]}"))
        found = []
        for file in sorted(files):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(file.read_text()))
                # Another one may have its pid by now.
                if process.create_time() < file.stat().st_mtime:
                    found.append(process)
        return found
    known = {
        "the driver": "train_core.engine.driver_process",
        "the controller": "ray::TrainController",
        "the raylet": "raylet/raylet",
        "the head": "gcs_server",
    }
    title = known[fault.victim]
    found = []
    for process in psutil.Process(flow.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(title in argument for argument in process.cmdline()[:3]):
                found.append(process)
    return found[:1]


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
        if stage in (*HELD, SELECTION, INFERENCE):
            self._wait((notes / "held").exists, stage)
        else:
            self._wait(lambda: SHOWN[stage] in self.log.splitlines(), stage)

    def wait_until_felt(self, held: Path) -> None:
        """Wait until the process that is held is gone, or for FELT_S."""
        if held.exists():
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                psutil.Process(int(held.read_text())).wait(FELT_S)

    def _wait(self, what: Callable[[], bool], title: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not what():
            assert self.process.poll() is None, f"it ended before {title}: {self.log[-2000:]}"
            assert time.monotonic() < deadline, f"no {title} came: {self.log[-2000:]}"
            time.sleep(0.05)

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


def unfinished(folder: RunFolder) -> list[str]:
    """What lies in the run folder and no manifest counts, and who seems to read or call there."""
    keys = [orphan.key for orphan in find_orphans(folder, newest_attempt(folder.store) + 1)]
    # The model's is meant to stay.
    keys += [str(pin) for pin in valid_pins(folder.store) if MLFLOW_MODEL not in pin.key]
    keys += [f"calls/{job}" for job in calls.jobs(folder.store)]
    if folder.store.is_local:
        keys += [str(path) for path in Path(folder.url).rglob(f"{TEMPORARY}*")]
    return keys


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


def recovered_at(folder: RunFolder, at: int) -> float:
    """When the first new step was done, or the report written, in seconds since 1970."""
    newest = folder.checkpoints()[-1].manifest
    entries = read_segments(folder.store, newest.journal)
    if after := [entry.time for entry in entries if entry.step > at]:
        return min(after)
    return folder.store.fs.modified(folder.store.path(REPORT_JSON)).timestamp()


def repeated(house: House, run: str, at: int) -> int:
    """How many steps were done twice, by what the log says of the last resume."""
    log = (house.home / f".evertrain/logs/{run}.log").read_text()
    resumed = [line for line in log.splitlines() if "resuming after step" in line]
    if not resumed:
        return at if "begins again" in log else 0
    return max(0, at - int(resumed[-1].split("resuming after step")[1].split()[0]))
