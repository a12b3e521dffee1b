"""A pipeline that is struck at a stage, brought to its end, compared with an undisturbed one."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.pipeline import (
    JOB_ENDS_WITHIN_S,
    House,
    Started,
    outcome,
    remaining,
    started,
    unfinished,
)
from tests.chaos.servers.outages import Outage
from tests.chaos.standing import HELD, HOLD, NOTES, PACE, is_held, newest_step
from tests.flows.prefect_side import shown_in_prefect
from tests.ranks.ray_processes import below
from train_core.storage.records.journal import read_segments
from train_core.storage.records.names import REPORT_JSON
from train_core.storage.run_folder import RunFolder


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
    workers: int = 0
    """That train; 0: as many as of the other pipelines."""
    then: str = ""
    """Who is struck afterwards, as `FURTHER` has them; the steps take longer."""

    @property
    def must_heal(self) -> bool:
        """Whether the pipeline has to come to its end by itself."""
        # At a moment drawn by chance the command may not have a flow yet.
        return self.victim != "the flow" and not self.after_s

    def __str__(self) -> str:
        when = f" after {self.after_s:.1f} s" if self.after_s else ""
        then = f", then of {self.then}" if self.then else ""
        return f"{self.how.name} of {self.victim}{when}{then}"


@dataclass(frozen=True)
class Recovery:
    """What became of it."""

    fault: Fault | Outage
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
    hold = f"{fault.stage}@{fault.rank}" if is_held(fault.stage) else "nothing"
    told = {HOLD: hold, NOTES: str(notes)} | ({PACE: "0.3"} if fault.then else {})
    if fault.workers:
        # Metrics of other batches are rounded otherwise.
        batch = 90 // house.num_workers
        house = replace(house, num_workers=fault.workers, eval_batch_size=batch)
    environment = house.environment | told | {"TMPDIR": str(scratch)}
    again = False
    with started(house.command(run, told), house.home, environment) as first:
        if fault.after_s:
            with suppress(subprocess.TimeoutExpired):
                first.process.wait(fault.after_s)
        else:
            first.wait_for(fault.stage, notes)
        first.look()
        at = newest_step(notes)
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
        if fault.then:
            FURTHER[fault.then](first, notes)
        code = first.end()
    log, left = first.log, remaining(first.belongings)
    if code != 0:
        again = True
        ended_with = f"the first command ended with {code}: {log[-800:]}"
        with started(house.command(run, told), house.home, environment) as second:
            code = second.end()
            log = second.log
        left += remaining(second.belongings)
    differences = [f"exit code {code}: {log[-500:]}"] if code else []
    if not code:
        found = outcome(house, run)
        differences = [name for name in reference if found[name] != reference[name]]
    if again and fault.must_heal:
        differences.append(ended_with)
    shown = shown_in_prefect(house.home, run)
    # On a cluster another flow may have attached to the job: a dead one is not told from it.
    if shown[-1:] != ["COMPLETED"] or ("RUNNING" in shown and not house.ray_address):
        differences.append(f"what Prefect shows: {shown}")
    if fault.stage in HELD and not again and "warning: " not in log:
        differences.append("what the terminal says: nothing warns of it")
    left += left_in(scratch) + unfinished(
        folder, job_ends_within_s=JOB_ENDS_WITHIN_S if house.ray_address else 0
    )
    seconds = math.nan if code else recovered_at(folder, at) - struck_at
    return Recovery(fault, struck, again, seconds, repeated(house, run, at), differences, left)


def victims(
    fault: Fault, flow: subprocess.Popen[str], notes: Path, folder: RunFolder
) -> list[psutil.Process]:
    if fault.victim == "nobody" or flow.poll() is not None:
        return []
    if fault.victim == "the job":
        wanted = ["train_core.driver.job.entry", folder.storage, folder.name]
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if (process.info["cmdline"] or [])[3:6] == wanted
        ]
    if fault.victim == "the flow":
        return [psutil.Process(flow.pid)]
    of = {"all ranks": "pid-*", "who scores": "pid-0"}
    if fault.victim in of or fault.victim.startswith("rank"):
        # "rank 1" is one of them, "ranks 01" are two.
        files = notes.glob(of.get(fault.victim, f"pid-[{fault.victim.split()[-1]}]"))
        found = []
        for file in sorted(files):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(file.read_text()))
                # Another one may have its pid by now.
                if process.create_time() < file.stat().st_mtime:
                    found.append(process)
        return found
    known = {
        "the driver": "train_core.driver.process_entry",
        "the raylet": "raylet/raylet",
        "the head": "gcs_server",
    }
    return below(psutil.Process(flow.pid), known[fault.victim])[:1]


def left_in(scratch: Path, *, besides: str = "ray") -> list[str]:
    """What lies in the temporary folder that should not."""
    # Ray keeps the logs of its sessions there, and torch makes a folder that stays empty.
    kept = ("ray", "torchinductor_", besides)
    return [f"{scratch}/{n}" for n in sorted(os.listdir(scratch)) if not n.startswith(kept)]


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


ROUNDS = 4
_WORKER = "ray::TrainWorker"


def _as_another_is_replaced(running: Started, notes: Path) -> None:
    """Rank 0, as the process in the place of rank 1 makes its model."""
    running.wait(lambda: _is_alive(_rank(notes, 1)))
    _kill(_rank(notes, 0))


def _one_after_the_other(running: Started, notes: Path) -> None:
    """Every rank by turns, each as soon as two more steps are done."""
    for number in range(ROUNDS):
        done = newest_step(notes)
        running.wait(lambda done=done: newest_step(notes) >= done + 2)
        _kill(_rank(notes, number % 2))


def _the_spare(running: Started, notes: Path) -> None:
    """The process that waits to be a rank."""
    running.wait(lambda: any(_spares(running, notes)))
    for spare in _spares(running, notes):
        _kill(spare)


FURTHER: dict[str, Callable[[Started, Path], None]] = {
    "rank 0 as it is replaced": _as_another_is_replaced,
    "every rank by turns": _one_after_the_other,
    "the spare": _the_spare,
}
"""Who is struck after rank 1 was, while the training recovers; whoever it is is waited for."""


def _rank(notes: Path, rank: int) -> psutil.Process | None:
    """The process that is the rank, or was."""
    with suppress(psutil.NoSuchProcess, FileNotFoundError):
        return psutil.Process(int((notes / f"pid-{rank}").read_text()))
    return None


def _spares(running: Started, notes: Path) -> Iterator[psutil.Process]:
    """Workers that are no rank, of a training of two."""
    ranks = {one.pid for rank in (0, 1) if (one := _rank(notes, rank))}
    if not (_is_alive(_rank(notes, 0)) and _is_alive(_rank(notes, 1))):
        # One of them is about to be a rank.
        return
    for process in psutil.Process(running.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.pid not in ranks and process.cmdline()[:1] == [_WORKER]:
                yield process


def _is_alive(process: psutil.Process | None) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process is not None and process.status() != psutil.STATUS_ZOMBIE
    return False


def _kill(process: psutil.Process | None) -> None:
    with suppress(psutil.NoSuchProcess):
        if process is not None:
            process.kill()
