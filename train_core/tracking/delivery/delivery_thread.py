"""The delivery loop: a thread that calls a sender, and calls it again after a failure.

The sender decides what is delivered, and where to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from train_core.timing import TrackingTiming

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outage:
    """Attempts that failed in a row, by the monotonic times of the first and the last of them."""

    since: float
    last: float

    def is_attempt_due(self, now: float, max_backoff_s: float) -> bool:
        """Whether to try again: the outage doubles between two attempts, up to the bound."""
        return now - self.last >= min(self.last - self.since, max_backoff_s)

    def ends_wait(self, began: float, now: float, down_after_s: float) -> bool:
        """Whether to end a wait that began then: in a long outage, after one more failure."""
        return self.last >= began and now - self.since > down_after_s

    @classmethod
    def extended(cls, outage: Outage | None, now: float) -> Outage:
        """The outage after one more failed attempt, which may be the first."""
        return cls(outage.since if outage else now, now)


class Sender(Protocol):
    """The work of a delivery; each method is called in the delivery's thread."""

    def connect(self) -> None:
        """Prepare to send, once and first of all. It does not raise."""

    def poll(self) -> None:
        """Record what would be lost otherwise, also during an outage. It does not raise."""

    def deliver(self) -> None:
        """Send everything that was not sent yet. An exception counts as an outage."""

    def describe(self, error: Exception) -> str:
        """The error as it may be logged."""


class Delivery:
    """A thread that lets its sender deliver until it is closed; `close` must be called.

    `what` names the work in log messages about failures, as "mirroring into MLflow".
    """

    def __init__(self, what: str, sender: Sender, timing: TrackingTiming) -> None:
        self._what = what
        self._sender = sender
        self._timing = timing
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._is_connected = self._is_started = self._is_closed = self._is_woken = False
        self._requested = self._completed = 0
        self._outage: Outage | None = None
        self._finish: tuple[int, Callable[[], None]] | None = None

    @property
    def is_started(self) -> bool:
        """Whether `start` was called."""
        return self._is_started

    def connect(self) -> None:
        """Begin the thread, which lets the sender connect."""
        if self._thread.ident is None:
            self._thread.start()

    def wait_until_connected(self, timeout_s: float) -> None:
        """Wait until the sender has connected, at most that long."""
        self.connect()
        with self._changed:
            self._changed.wait_for(lambda: self._is_connected, timeout_s)

    def start(self) -> None:
        """Begin to deliver."""
        self.connect()
        with self._changed:
            self._is_started = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Deliver now, and not when it is time to; in an outage, when the next attempt is due."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything from before the call is delivered; return whether it is.

        Gives up early after an outage of `down_after_s` and one more failed attempt.
        """
        with self._changed:
            self._requested += 1
            requested, began = self._requested, time.monotonic()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_flushed(requested, began), timeout_s)
            return self._completed >= requested

    def finish_with_next_flush(self, finish: Callable[[], None]) -> None:
        """Call `finish` after the delivery that the next flush waits for, and deliver no more."""
        with self._changed:
            # An attempt that began earlier may have missed the newest entries.
            self._finish = self._requested + 1, finish

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            # A request under way ends by its own timeout; the thread is a daemon.
            self._thread.join(self._timing.down_after_s)

    def _work(self) -> None:
        self._sender.connect()
        with self._changed:
            self._is_connected = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_started or self._is_closed)
        while not self._is_closed:
            requested = self._requested
            self._sender.poll()
            if requested > self._completed or self._is_due():
                self._attempt(requested)
            self._wait_for_request(requested + 1)

    def _wait_for_request(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._is_woken or self._requested >= number,
                self._timing.poll_s,
            )
            self._is_woken = False

    def _has_flushed(self, requested: int, began: float) -> bool:
        is_hopeless = self._outage is not None and self._outage.ends_wait(
            began, time.monotonic(), self._timing.down_after_s
        )
        return self._completed >= requested or is_hopeless

    def _is_due(self) -> bool:
        return self._outage is None or self._outage.is_attempt_due(
            time.monotonic(), self._timing.max_backoff_s
        )

    def _attempt(self, requested: int) -> None:
        try:
            self._sender.deliver()
            self._finish_if_requested(requested)
        except Exception as error:  # noqa: BLE001 (whatever it is, the next attempt may succeed)
            self._note_failure(error)
        else:
            self._note_success(requested)

    def _finish_if_requested(self, requested: int) -> None:
        if self._finish is None:
            return
        number, finish = self._finish
        if requested >= number:
            finish()
            self._is_closed = True

    def _note_failure(self, error: Exception) -> None:
        if self._outage is None:
            described = self._sender.describe(error)
            _log.warning("%s fails, and is tried again: %s", self._what, described)
        with self._changed:
            self._outage = Outage.extended(self._outage, time.monotonic())
            self._changed.notify_all()

    def _note_success(self, requested: int) -> None:
        if self._outage is not None:
            _log.warning("%s goes on", self._what)
        with self._changed:
            self._outage = None
            self._completed = requested
            self._changed.notify_all()
