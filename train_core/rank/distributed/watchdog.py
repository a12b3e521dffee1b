"""The watchdog: ends a process that makes no progress, and logs the stacks of its threads.

It is the interpreter's own, a thread that waits for no lock: it also fires when a library hangs
within one. What it writes, `Timeout` and the stacks of all threads, goes to stderr, and so into the
log. If one rank is frozen from outside, the ranks that wait for it fire too; the driver notices the
frozen process by the pings in `cluster/worker_calls.py`. A training function is not watched:
`hang_timeout_s` has no effect on it.
"""

from __future__ import annotations

import faulthandler
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2


@contextmanager
def watching(timeout_s: float) -> Iterator[Watchdog]:
    """A watchdog that is on its guard from here, and rests when the block is done."""
    watchdog = Watchdog(timeout_s)
    watchdog.move()
    try:
        yield watchdog
    finally:
        watchdog.rest()


class Watchdog:
    """Fires when it was not moved for `timeout_s`; 0: never. It rests until it is first moved."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._moved_at = -math.inf

    def move(self) -> None:
        """There is progress: the time begins anew."""
        now = time.monotonic()
        # Each time costs a thread, so not at every step of a small model.
        if self._timeout_s and now - self._moved_at >= min(1, self._timeout_s / 10):
            self._moved_at = now
            faulthandler.dump_traceback_later(self._timeout_s, exit=True, file=_STDERR)

    def rest(self) -> None:
        """Do not fire until it is moved again."""
        self._moved_at = -math.inf
        faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Do not fire in the block: what it waits for has limits of its own."""
        self.rest()
        yield
        self.move()
