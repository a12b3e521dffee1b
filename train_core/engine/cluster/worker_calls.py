"""Waits for calls on workers: returns their results, or raises the cause of a failure.

Workers that run a call are pinged, so a process that is frozen from outside is noticed; one that
answers and makes no progress ends itself (`engine/distributed/watchdog.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from train_core.engine.cluster.failures import (
    SilentWorkerError,
    first_cause,
    is_death,
    raised_by,
)
from train_core.engine.cluster.timing import Timing

Actor = Any
"""A handle on a `TrainWorker`: Ray's own annotation does not know its methods."""


class Calls:
    """Calls that run on workers, each under the worker's name in error messages."""

    def __init__(self, silent_after_s: float, timing: Timing) -> None:
        self._timing = timing
        self.running: dict[str, tuple[Actor, ray.ObjectRef[Any]]] = {}
        self._order: list[str] = []
        self._silent_after_s = silent_after_s
        self._pings: dict[str, tuple[ray.ObjectRef[Any], float]] = {}
        self._pinged_at = time.monotonic()

    def add(self, worker: str, actor: Actor, result: ray.ObjectRef[Any]) -> None:
        """Add a call to those that are waited for."""
        self.running[worker] = actor, result
        self._order.append(worker)

    def wait_for_all(self, remedy: str, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The results of all calls, in the order of their addition. Raises the first cause."""
        results: dict[str, Any] = {}
        while self.running:
            check()
            results |= {worker: result for worker, _, result in self.wait(remedy)}
        return {worker: results[worker] for worker in self._order}

    def wait(self, remedy: str) -> list[tuple[str, Actor, Any]]:
        """The calls that have returned, after a second at most. Raises a failure's first cause."""
        try:
            ended, failures = self._ended(self._timing.call_poll_s)
            if not failures:
                return ended
            failures |= self._other_failures(failures)
        except RayError as error:
            raise ConnectionError(f"Ray ended: {type(error).__name__}: {error}") from error
        ordered = [worker for worker in self._order if worker in failures]
        raise first_cause({worker: failures[worker] for worker in ordered}, remedy)

    def _other_failures(self, failures: dict[str, Exception]) -> dict[str, Exception]:
        """Further failures at the same time: the first one reported is often a consequence."""
        found: dict[str, Exception] = {}
        deadline = time.monotonic() + self._timing.failures_s
        while self.running and (left_s := deadline - time.monotonic()) > 0:
            if any(map(is_death, (failures | found).values())):
                return found
            found |= self._ended(left_s)[1]
        return found | self._deaths()

    def _deaths(self) -> dict[str, Exception]:
        """The death of one of the others: a survivor often fails before Ray reports the death."""
        pings = {actor.answer.remote(): worker for worker, (actor, _) in self.running.items()}
        deadline, waiting = time.monotonic() + self._timing.answer_s, list(pings)
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=left_s)
            for ping in done:
                try:
                    ray.get(ping)
                except RayError as error:
                    return {pings[ping]: error}
        return {}

    def _ended(self, timeout_s: float) -> tuple[list[tuple[str, Actor, Any]], dict[str, Exception]]:
        """The calls that have returned, and the failures by worker."""
        names = {ref: worker for worker, (_, ref) in self.running.items()}
        done, _ = ray.wait(list(names), num_returns=1, timeout=timeout_s)
        returned, failures = [], self._silent()
        for ref in done:
            worker = names[ref]
            actor, _ = self.running.pop(worker)
            try:
                returned.append((worker, actor, ray.get(ref)))
            except Exception as error:  # noqa: BLE001 (what the function raised, or Ray)
                failures[worker] = raised_by(error)
        return returned, failures

    def _silent(self) -> dict[str, Exception]:
        """The workers that have not answered for too long."""
        now = time.monotonic()
        if not self._silent_after_s or now - self._pinged_at < self._timing.ping_every_s:
            return {}
        if now - self._pinged_at > self._timing.ping_every_s + self._timing.answer_s:
            # This process was suspended itself: answers that came meanwhile are not read yet.
            self._pings.clear()
        self._pinged_at = now
        failures: dict[str, Exception] = {}
        for worker, (actor, _) in self.running.items():
            ping, since = self._pings.get(worker, (None, now))
            if ping is None or ray.wait([ping], timeout=0)[0]:
                self._pings[worker] = actor.answer.remote(), now
            elif now - since > self._silent_after_s:
                failures[worker] = SilentWorkerError(f"no answer for {now - since:.0f} s")
        return failures
