"""Calls on workers, which settle to an outcome for each slot.

Workers that run a call are pinged, so a process that is frozen from outside is noticed; one that
answers and makes no progress ends itself (`rank/distributed/watchdog.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from train_core.cluster.outcomes import (
    Died,
    Failure,
    Outcome,
    Raised,
    Returned,
    Running,
    SilentWorkerError,
    TerminatedWorkerError,
    failure_of,
)
from train_core.cluster.worker_process import Actor
from train_core.timing import ClusterTiming


class Calls:
    """Calls that run on workers, at most one in each slot.

    A worker that has not answered for `silent_after_s` counts as dead; 0: none does.
    """

    def __init__(self, silent_after_s: float, timing: ClusterTiming) -> None:
        self._timing = timing
        self.running: dict[int, tuple[Actor, ray.ObjectRef[Any]]] = {}
        """By slot: the worker and the result, in the order of their addition."""
        self._silent_after_s = silent_after_s
        self._pings: dict[int, tuple[ray.ObjectRef[Any], float]] = {}
        self._pinged_at = time.monotonic()
        self._expelled: dict[int, TerminatedWorkerError] = {}

    def add(self, slot: int, worker: Actor, result: ray.ObjectRef[Any]) -> None:
        """Add a call on the worker of a slot to those that are waited for."""
        self.running[slot] = worker, result
        self._pings.pop(slot, None)

    def expel(self, slot: int, why: TerminatedWorkerError) -> None:
        """End the worker of a slot by SIGKILL, which is the cause with which its call settles."""
        if slot in self.running:
            self._expelled[slot] = why
            ray.kill(self.running[slot][0])

    def settle(self, check: Callable[[], None] = lambda: None) -> dict[int, Outcome]:
        """The outcome of each call, once all have returned or one has failed.

        Calls that go on after a failure are `Running`, and settle with the next `settle`. `check`
        is called each second, and may raise. Raises ConnectionError if Ray itself ended.
        """
        slots = list(self.running)
        settled: dict[int, Outcome] = {}
        while self.running and not _has_failure(settled):
            check()
            settled |= self.wait()
        return {slot: settled.get(slot, Running()) for slot in slots}

    def end(self, within_s: float) -> dict[int, Outcome]:
        """The outcome of each call that still runs: `Running` if it has not ended `within_s`.

        Raises ConnectionError if Ray itself ended.
        """
        deadline, ended = time.monotonic() + within_s, dict[int, Outcome]()
        slots = list(self.running)
        try:
            while self.running and (left_s := deadline - time.monotonic()) > 0:
                ended |= self._settled(left_s)
        except RayError as error:
            raise _ray_ended(error) from error
        return {slot: ended.get(slot, Running()) for slot in slots}

    def wait(self) -> dict[int, Outcome]:
        """The calls that have settled, after a second at most, in the order of their addition.

        If one failed, these are also what failed at the same time. Raises ConnectionError if Ray
        itself ended.
        """
        slots = list(self.running)
        try:
            settled = self._settled(self._timing.call_poll_s)
            if _has_failure(settled):
                settled |= self._settled_with_failure(settled)
        except RayError as error:
            raise _ray_ended(error) from error
        return {slot: settled[slot] for slot in slots if slot in settled}

    def _settled_with_failure(self, failed: dict[int, Outcome]) -> dict[int, Outcome]:
        """Further outcomes at the same time: the failure reported first is often a consequence."""
        found: dict[int, Outcome] = {}
        deadline = time.monotonic() + self._timing.failures_s
        while self.running and (left_s := deadline - time.monotonic()) > 0:
            if any(isinstance(one, Died) for one in (failed | found).values()):
                return found
            found |= self._settled(left_s)
        return found | self._death()

    def _death(self) -> dict[int, Outcome]:
        """The death of one of the others: a survivor often fails before Ray reports the death."""
        pings = {worker.answer.remote(): slot for slot, (worker, _) in self.running.items()}
        deadline, waiting = time.monotonic() + self._timing.answer_s, list(pings)
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=left_s)
            for ping in done:
                try:
                    ray.get(ping)
                except RayError as error:
                    del self.running[pings[ping]]
                    return {pings[ping]: Died(error)}
        return {}

    def _settled(self, timeout_s: float) -> dict[int, Outcome]:
        """The calls that have settled, as soon as one has, or after `timeout_s`."""
        slots = {result: slot for slot, (_, result) in self.running.items()}
        ray.wait(list(slots), num_returns=1, timeout=timeout_s)
        done, _ = ray.wait(list(slots), num_returns=len(slots), timeout=0)
        settled: dict[int, Outcome] = {slot: Died(error) for slot, error in self._silent().items()}
        for result in done:
            try:
                settled[slots[result]] = Returned(ray.get(result))
            except Exception as error:  # noqa: BLE001 (what the function raised, or Ray)
                settled[slots[result]] = self._failure_of(slots[result], error)
        for slot in settled:
            del self.running[slot]
        return settled

    def _failure_of(self, slot: int, error: Exception) -> Failure:
        if slot in self._expelled:
            return Died(self._expelled[slot])
        return failure_of(error)

    def _silent(self) -> dict[int, SilentWorkerError]:
        """The slots whose workers have not answered for too long."""
        now = time.monotonic()
        if not self._silent_after_s or now - self._pinged_at < self._timing.ping_every_s:
            return {}
        if now - self._pinged_at > self._timing.ping_every_s + self._timing.answer_s:
            # This process was suspended itself: answers that came meanwhile are not read yet.
            self._pings.clear()
        self._pinged_at = now
        silent: dict[int, SilentWorkerError] = {}
        for slot, (worker, _) in self.running.items():
            ping, since = self._pings.get(slot, (None, now))
            if ping is None or ray.wait([ping], timeout=0)[0]:
                self._pings[slot] = worker.answer.remote(), now
            elif now - since > self._silent_after_s:
                silent[slot] = SilentWorkerError(f"no answer for {now - since:.0f} s")
        return silent


def _ray_ended(error: RayError) -> ConnectionError:
    return ConnectionError(f"Ray ended: {type(error).__name__}: {error}")


def _has_failure(outcomes: dict[int, Outcome]) -> bool:
    return any(isinstance(one, Raised | Died) for one in outcomes.values())
