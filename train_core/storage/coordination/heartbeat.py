"""Heartbeats: a counter that a process moves while it lives, and how others judge it.

The counter lies in a small object. An observer compares no clocks: on its own monotonic clock it
measures for how long the counter has not moved while the storage could be read, and written.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from train_core.errors import StorageError
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import Count
from train_core.storage.records.names import LEASES
from train_core.timing import CoordinationTiming

_K = TypeVar("_K")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Heartbeat(BaseModel):
    """The object that a process writes anew with each heartbeat."""

    counter: Count


class HeartbeatSender:
    """Sends heartbeats from a thread of its own, one every `interval_s`, until it is stopped.

    A heartbeat that the storage does not take is skipped. The first one of an outage is logged at
    `level`, the others at DEBUG.
    """

    def __init__(
        self, send: Callable[[], None], interval_s: float, level: int = logging.WARNING
    ) -> None:
        self._send = send
        self._interval_s = interval_s
        self._level = level
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Send the first heartbeat after `interval_s`."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Send no more; one that is being sent is waited for, at most `timeout_s`."""
        self._is_stopped.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_away = False
        while not self._is_stopped.wait(self._interval_s):
            try:
                self._send()
            except StorageError as error:
                level = logging.DEBUG if is_away else self._level
                _log.log(level, "the heartbeat was not written: %s", error)
                is_away = True
            else:
                is_away = False


@dataclass
class HeartbeatObserver(Generic[_T]):
    """For how long one heartbeat has not moved, for an observer that goes on.

    All times are the caller's, of `time.monotonic()`.
    """

    counter: _T
    """The counter as last observed."""
    moved_at: float
    """When that was first observed, or the observation began anew."""

    def observe(self, counter: _T, now: float) -> None:
        """Take what was read at `now`."""
        if counter != self.counter:
            self.counter, self.moved_at = counter, now

    def restart(self, now: float) -> None:
        """Measure from `now` on: the storage could not be read, or the process is known to live."""
        self.moved_at = now

    def still_s(self, now: float) -> float:
        """For how many seconds it has not moved."""
        return now - self.moved_at


def standing_still(
    store: Store,
    since: Mapping[_K, _T],
    read: Callable[[_K], _T],
    standstill_s: float,
    timing: CoordinationTiming,
) -> list[_K]:
    """Which heartbeats stand still for long: what `read` gives of their keys stays as in `since`.

    It waits until all have moved, or for `standstill_s` and `timing.slow_reads` times the slowest
    read or write. The storage has to answer, and to take writes, all the while: where it is away
    from the process, too, the process lives and its heartbeat stands still. Raises StorageError,
    and what `read` raises.
    """
    still, begin, slowest_s = list(since), time.monotonic(), 0.0
    with _probing_writes(store) as probe:
        while True:
            asked_at = time.monotonic()
            still = [key for key in still if read(key) == since[key]]
            # Between the first answer and the last question it did not move for certain. Where
            # reading a heartbeat or writing takes long, so does writing a heartbeat.
            if not still or asked_at - begin > standstill_s + timing.slow_reads * slowest_s:
                return still
            slowest_s = max(slowest_s, time.monotonic() - asked_at, probe())
            time.sleep(timing.lease_poll_interval_s)


@contextmanager
def _probing_writes(store: Store) -> Iterator[Callable[[], float]]:
    """Give a function that writes a small object of the run: how many seconds that took.

    A storage that can be read may take no writes: then no heartbeat moves, and all live. The
    function raises StorageError if the storage takes none within the store's retry policy.
    """
    key = f"{LEASES}/probe-{uuid.uuid4().hex}"

    def write() -> float:
        begin = time.monotonic()
        store.write(key, b"")
        return time.monotonic() - begin

    try:
        yield write
    finally:
        with suppress(StorageError):
            store.delete(key)
