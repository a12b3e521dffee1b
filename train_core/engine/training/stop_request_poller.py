"""How a rank learns of a request to stop, without the loop waiting for anything.

A request comes from `evertrain runs stop`, from the driver's program as it ends, or from the watch
over the cluster, which sees drained nodes and new ones (`engine/cluster/scaling.py`). Every rank
polls for it, so that it is known during a validation or a wait as well. Between steps the control
message makes all ranks act on it after the same step.

No signal is such a request: `engine/cluster/worker_process.py` has what SIGTERM does to a worker.
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
    """Between two polls of a rank for a request."""
    end_s: float = 3.0
    """Seconds of `grace_s` kept for ending when saving failed; at most half of it."""
    close_s: float = 0.5
    """How long a rank that gave up saving waits for each thread that a storage blocks."""

    def time_to_save_s(self, grace_s: float) -> float:
        """How long after a request to end the ranks try to save."""
        return max(grace_s - self.end_s, grace_s / 2)


class StopRequestPoller:
    """Polls for a request, in a background thread once it is started.

    With `logs`, which one rank has, it logs the request.
    """

    def __init__(
        self, source: StopSource, grace_s: float, timing: StopTiming | None, *, logs: bool
    ) -> None:
        self.timing = timing or StopTiming()
        self.request: StopRequest | None = None
        """The newest request; a request to end replaces one to move."""
        self._source = source
        self._grace_s = grace_s
        self._logs = logs
        self._ends_at = math.inf
        self._is_closed = threading.Event()
        self._thread = threading.Thread(
            target=self._listen, name="stop-request-poller", daemon=True
        )

    def start(self) -> None:
        """Start to poll."""
        self._thread.start()

    @property
    def is_asked(self) -> bool:
        """Whether this attempt is to save and end."""
        return self.request is not None

    def is_grace_over(self) -> bool:
        """Whether the time to save is over, after a request to end.

        A request to move has no such limit.
        """
        return time.monotonic() > self._ends_at

    def poll(self) -> None:
        """Poll once."""
        try:
            request = self._source.poll()
        except (EvertrainError, OSError) as error:
            _log.debug("the request to stop cannot be read: %s", error)
            return
        if request is None or not request.replaces(self.request):
            return
        if self._logs:
            _log.info("asked to stop: %s; a last checkpoint is saved", request.reason)
        if not request.goes_on:
            self._ends_at = time.monotonic() + self.timing.time_to_save_s(self._grace_s)
        self.request = request

    def close(self) -> None:
        """End the thread. A thread that waits for its source is left behind."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(self.timing.poll_s)

    def _listen(self) -> None:
        # Also after a request to move: a request to end may follow.
        while self.request is None or self.request.goes_on:
            self.poll()
            if self._is_closed.wait(self.timing.poll_s):
                return
