"""A launcher whose ranks are processes that live on from attempt to attempt, without Ray.

They are forked from a server that has imported torch once. It does what `PoolLauncher` does with a
pool: who has died, or does not leave, is replaced, and the others begin again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.ranks import in_place
from tests.ranks.processes import PROCESSES
from tests.ranks.rank import be_a_process
from train_core.driver.attempts.supervisor import Attempt, AttemptOutcome
from train_core.errors import AttemptLostError
from train_core.policy.restarts import Ended
from train_core.rank.distributed.earlier_commit import post_earlier
from train_core.rank.distributed.rendezvous import LOOPBACK, RendezvousStore
from train_core.rank.distributed.stop_requests import LOST, post_stop

LEAVE_S = 5.0
"""How long the others have on a busy machine."""


def main(calls: Connection, log: Path) -> None:
    """Be ranks, one after the other, until nobody asks any more."""
    be_a_process(log)
    while True:
        try:
            given = calls.recv()
        except EOFError:
            return
        try:
            in_place.train(*given)
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
        process = PROCESSES.Process(target=main, args=(there, self._log))
        process.start()
        there.close()
        return _Process(process, here)
