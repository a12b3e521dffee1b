"""The callers of a job, and whether they live: each caller's heartbeat is observed."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from train_core.errors import StorageError
from train_core.storage.coordination.heartbeat import HeartbeatObserver
from train_core.storage.coordination.job_mailbox import Mailbox
from train_core.timing import Timing

_log = logging.getLogger("train_core.driver")


class Callers:
    """The callers of one job. While the storage is away, none of them counts as gone."""

    def __init__(self, mailbox: Mailbox, timing: Timing) -> None:
        self._mailbox = mailbox
        self._timing = timing
        self._observers: dict[str, HeartbeatObserver[int]] = {}
        self._observed_at = 0.0

    def add(self, caller: str) -> None:
        """Count the caller as living from now on, if it is new."""
        self._observers.setdefault(caller, HeartbeatObserver(0, time.monotonic()))

    def remove(self, caller: str) -> None:
        """Forget a caller that calls no more."""
        del self._observers[caller]

    def any_lives(self) -> bool:
        """Whether the heartbeat of a caller has moved lately."""
        now = time.monotonic()
        if now - self._observed_at > self._mailbox.timing.mailbox_heartbeat_s:
            self.observe()
        limit_s = self._mailbox.timing.mailbox_standstill_s
        return any(observer.still_s(now) < limit_s for observer in self._observers.values())

    def counters(self) -> dict[str, int]:
        """How far each one's heartbeat was when it was observed last."""
        return {caller: observer.counter for caller, observer in self._observers.items()}

    def any_has_moved(self, since: Mapping[str, int]) -> bool:
        """Whether a heartbeat has moved since those counters; one that was not there has."""
        return any(counter > since.get(caller, 0) for caller, counter in self.counters().items())

    def observe(self) -> None:
        """Read each caller's heartbeat."""
        observed_before, storage_unreachable = self._observed_at, False
        counters = {}
        for caller in self._observers:
            try:
                counters[caller] = self._mailbox.heartbeat_of(caller)
            except (StorageError, ValueError) as error:
                storage_unreachable |= isinstance(error, StorageError)
                _log.debug("it is unknown whether caller %s lives: %s", caller, error)
        now = self._observed_at = time.monotonic()
        # While a storage is away, heartbeats can neither be read nor written.
        late_s = self._mailbox.timing.mailbox_heartbeat_s + self._timing.late_s
        storage_unreachable |= now - observed_before > late_s
        for caller, observer in self._observers.items():
            observer.observe(counters.get(caller, observer.counter), now)
            if storage_unreachable:
                observer.restart(now)
