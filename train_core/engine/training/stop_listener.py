"""How a rank learns that its attempt was asked to stop, without the loop waiting for anything.

Every rank looks, so that it knows also while it validates or waits. Between steps it is the control
message that has all ranks act on it after the same step.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass

from train_core.engine.distributed.stop_source import StopSource
from train_core.errors import EvertrainError
from train_core.storage.coordination.stop_request import StopRequest

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StopTiming:
    """The times of a stop, in seconds."""

    poll_s: float = 1.0
    """How often a rank looks for a request."""
    end_s: float = 3.0
    """What is kept of `grace_s`, but half of it at most, for the end of ranks that cannot save."""
    close_s: float = 0.5
    """How long a rank that gave up saving waits for each of its threads that a storage blocks."""

    def time_to_save_s(self, grace_s: float) -> float:
        """How long after a request to end the ranks try to save."""
        return max(grace_s - self.end_s, grace_s / 2)


class StopListener:
    """Looks for a request from time to time, in a thread of its own.

    `speaks` is whether it says in the log what it found: one rank of all does.
    """

    def __init__(
        self, source: StopSource, grace_s: float, timing: StopTiming | None, *, speaks: bool
    ) -> None:
        self.timing = timing or StopTiming()
        self.request: StopRequest | None = None
        """What the attempt is asked for; an end replaces a move."""
        self._source = source
        self._grace_s = grace_s
        self._speaks = speaks
        self._ends_at = math.inf
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="stop-listener", daemon=True)
        self._thread.start()

    @property
    def is_asked(self) -> bool:
        """Whether somebody wants this attempt to save and end."""
        return self.request is not None

    def is_time_up(self) -> bool:
        """Whether an attempt that is asked to end has had its time to save.

        One that is asked to move has all the time that storing may take otherwise.
        """
        return time.monotonic() > self._ends_at

    def look(self) -> None:
        """Look once."""
        try:
            request = self._source.look()
        except (EvertrainError, OSError) as error:
            _log.debug("the request to stop cannot be read: %s", error)
            return
        if request is None or not request.replaces(self.request):
            return
        if self._speaks:
            _log.info("asked to stop: %s; a last checkpoint is saved", request.reason)
        if not request.goes_on:
            self._ends_at = time.monotonic() + self.timing.time_to_save_s(self._grace_s)
        self.request = request

    def close(self) -> None:
        """End the thread; one that waits for its source is left behind."""
        self._is_closed.set()
        self._thread.join(self.timing.poll_s)

    def _listen(self) -> None:
        # Also after a request to move: one to end may follow.
        while self.request is None or self.request.goes_on:
            self.look()
            if self._is_closed.wait(self.timing.poll_s):
                return
