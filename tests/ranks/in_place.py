"""Ranks of a pool that kill themselves where a file says, and note the steps that they do.

`LastingProcesses` launches them without Ray: they live on from attempt to attempt, forked from a
server that has imported torch once. It does what `PoolLauncher` does with a pool: who has died, or
does not leave, is replaced, and the others begin again.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil
import torch

from tests.ranks.processes import PROCESSES
from tests.ranks.rank import Fault, MortalFolder, MortalTrainer, be_a_process
from train_core.config import TrainConfig
from train_core.driver.attempts.supervisor import Attempt, AttemptOutcome
from train_core.errors import AttemptLostError
from train_core.policy.restarts import Ended
from train_core.rank import training
from train_core.rank.distributed.earlier_commit import post_earlier
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.rendezvous import LOOPBACK, Membership, RendezvousStore
from train_core.rank.distributed.stop_requests import LOST, post_stop
from train_core.storage.objects.retry_policy import RetryPolicy
from train_core.storage.records.names import CHECKPOINTS, CheckpointName
from train_core.storage.run_folder import RunFolder

LAST_OF_RANK_0 = "optimizer.safetensors.index.json"
"""The file of a checkpoint that rank 0 stores last, before the commit."""
SLOW_S = 1.8
"""Of which a validation has three or four."""
LEAVE_S = 5.0
"""How long the others have on a busy machine."""
Steps = list[tuple[int, int, int, int]]
"""Of each step that was done: the attempt, the rank, the step and the process."""


def schedule(scratch: Path, kills: dict[int, list[dict[str, Any]]]) -> None:
    """Say which ranks of which attempts die where; each has `rank`, `point`, `step`, `after`."""
    Path(scratch, "kills.json").write_text(json.dumps(kills))


def steps_done(scratch: Path) -> Steps:
    """All steps that were done, in the order of attempts and steps."""
    lines = [line for file in scratch.glob("steps-*") for line in file.read_text().splitlines()]
    return sorted(tuple(map(int, line.split())) for line in lines)


def facts_of_processes(scratch: Path) -> list[dict[str, Any]]:
    """What the survivors were found to have, as their attempts ended."""
    return [json.loads(file.read_text()) for file in sorted(scratch.glob("facts-*"))]


class InPlaceTrainer(MortalTrainer):
    """Also `in_restore`, `before_update`, `after_update`, `after_step`; `before_joining` a group.

    `stuck`: it does not go on; `slow_validation`: it measures for longer than it is waited for;
    `alter`: a weight is another one than on the other ranks; `shared`: all shares of the checkpoint
    are stored, and it dies.
    """

    def __init__(
        self, folder: RunFolder, config: TrainConfig, attempt: int, group: Group, **more: Any
    ) -> None:
        self.scratch = Path(folder.storage)
        mortal = _folder(folder, attempt, group.rank)
        super().__init__(mortal, config, attempt, group, **more)
        optimizer = self.learner.optimizer
        optimizer.register_step_pre_hook(lambda *_: self.meet("before_update"))
        optimizer.register_step_post_hook(lambda *_: self.meet("after_update"))

    def meet(self, point: str) -> None:
        at = self.folder.fault.is_at("slow_validation", self.progress.step)
        if at and point == "in_validation":
            time.sleep(SLOW_S)
        super().meet(point)

    def restore(self) -> None:
        self.meet("in_restore")
        super().restore()

    def step(self) -> None:
        while self.folder.fault.is_at("stuck", self.progress.step):
            time.sleep(60)
        if self.folder.fault.is_at("shared", self.progress.step):
            name = CheckpointName(self.progress.step, self.attempt)
            last = f"{CHECKPOINTS}/{name}/{LAST_OF_RANK_0}"
            while self.checkpointer.is_busy or not self.folder.store.exists(last):
                time.sleep(0.01)
            self.meet("shared")
        if self.folder.fault.is_at("alter", self.progress.step):
            with torch.no_grad():
                next(self.learner.model.parameters()).view(-1)[0] += 1
        super().step()
        with Path(self.scratch, f"steps-{os.getpid()}").open("a") as file:
            print(self.attempt, self.group.rank, self.progress.step, os.getpid(), file=file)
        self.meet("after_step")


def _folder(folder: RunFolder, attempt: int, rank: int) -> MortalFolder:
    """The folder of a rank, which has its fault."""
    kills = json.loads(Path(folder.storage, "kills.json").read_text())
    faults = [one for one in kills.get(str(attempt), []) if one["rank"] == rank]
    fault = Fault()
    if faults:
        fault = Fault(faults[0]["point"], faults[0]["step"], faults[0].get("after", 0))
    return MortalFolder(folder.storage, folder.name, fault, RetryPolicy())


def train(url: str, config: TrainConfig, attempt: int, own: Membership) -> Any:
    _folder(RunFolder.at(url), attempt, own.rank).meet("before_joining", 0)
    try:
        return training.train(url, config, attempt, own, InPlaceTrainer)
    except (AttemptLostError, ConnectionError):
        process, scratch = psutil.Process(), Path(url).parent
        facts = {
            "attempt": attempt,
            "pid": process.pid,
            "threads": process.num_threads(),
            "descriptors": process.num_fds(),
            "children": len(process.children()),
            "memory": process.memory_info().rss,
        }
        Path(scratch, f"facts-{attempt:03}-{own.rank}").write_text(json.dumps(facts))
        raise


def be_ranks(calls: Connection, log: Path) -> None:
    """Be ranks, one after the other, until nobody asks any more."""
    be_a_process(log)
    while True:
        try:
            given = calls.recv()
        except EOFError:
            return
        try:
            train(*given)
            calls.send(None)
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            calls.send(error)


@dataclass
class _Process:
    process: Any
    calls: Connection

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.calls.close()


class LastingProcesses:
    """As a pool of processes on this machine."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._processes: list[_Process] = []
        self.pids: list[list[int]] = []
        """Those of each attempt, in the order of ranks."""
        self.unwilling: list[int] = []
        """Those that had not left in time."""

    def run(self, attempt: Attempt) -> AttemptOutcome:
        """Run the ranks; those that have ended stay for the next attempt."""
        store, group = RendezvousStore(LOOPBACK), f"{attempt.folder.name}/{attempt.number}"
        attempt.requests.send_by(lambda request: post_stop(store, group, request))
        post_earlier(store, group, attempt.earlier)
        workers = attempt.config.num_workers
        while len(self._processes) < workers:
            self._processes.append(self._start())
        self.pids.append([one.process.pid for one in self._processes])
        for rank, one in enumerate(self._processes):
            own = store.membership(group, rank, workers, 0)
            one.calls.send((attempt.folder.url, attempt.config, attempt.number, own))
        return self._wait(store, group)

    def close(self) -> None:
        for one in self._processes:
            one.kill()
        self._processes.clear()

    def _wait(self, store: RendezvousStore, group: str) -> AttemptOutcome:
        running, error = dict(enumerate(self._processes)), None
        lost: list[int] = []
        kept_step = 0
        deadline, cut_off_at = None, float("inf")
        while running and (deadline is None or time.monotonic() < deadline):
            wait([one.calls for one in running.values()], 0.05)
            for rank, one in list(running.items()):
                if not one.calls.poll():
                    continue
                try:
                    found = one.calls.recv()
                except (EOFError, ConnectionError):
                    found = ConnectionError(f"rank {rank} died")
                del running[rank]
                # As `is_survivor` has it.
                if isinstance(found, AttemptLostError):
                    kept_step = max(kept_step, found.kept_step)
                elif isinstance(found, ConnectionError):
                    lost.append(rank)
                elif found is not None:
                    return AttemptOutcome(Ended.FAILED, found)
                error = error or found
            if error and deadline is None:
                store.post(group, LOST, str(error))
                deadline = time.monotonic() + LEAVE_S
                cut_off_at = deadline - LEAVE_S / 2
            if time.monotonic() > cut_off_at:
                store.close()
        self.unwilling += [self._processes[rank].process.pid for rank in running]
        for rank in (*lost, *running):
            self._processes[rank].kill()
            self._processes[rank] = self._start()
        if not error:
            return AttemptOutcome()
        has_survivors = len(lost) < len(self._processes)
        return AttemptOutcome(Ended.LOST, error, has_survivors=has_survivors, kept_step=kept_step)

    def _start(self) -> _Process:
        here, there = PROCESSES.Pipe()
        process = PROCESSES.Process(target=be_ranks, args=(there, self._log))
        process.start()
        there.close()
        return _Process(process, here)
