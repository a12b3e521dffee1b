"""The requests to stop of one attempt, from all sources: the driver sends them to its ranks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from train_core.errors import EvertrainError
from train_core.policy.restarts import Asked
from train_core.storage.coordination.stop_request import StopRequest, stop_request
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.objects.store import Store

_CLOSE_S = 1.0
_log = logging.getLogger("train_core.driver")


class StopRequests:
    """Collects the requests to one attempt, from any thread, and sends the newest to its ranks.

    The driver's own program and the watch over the cluster's nodes call the methods here. A request
    that `evertrain runs stop` wrote into the run folder is read from there, every `poll_s`. One
    that could not be sent to the ranks is sent again then.
    """

    def __init__(self, store: Store, attempt: int, poll_s: float) -> None:
        self.newest: StopRequest | None = None
        # With a short budget: the next poll follows soon.
        self._store = store.with_retries(SHORT)
        self._attempt = attempt
        self._poll_s = poll_s
        self._send: Callable[[StopRequest], None] | None = None
        self._sent: StopRequest | None = None
        """The newest request that the ranks have."""
        self._one_at_a_time = threading.Lock()
        self._has_ended = threading.Event()

    @property
    def asked(self) -> Asked:
        """The newest request."""
        if self.newest is None:
            return Asked.NOTHING
        return Asked.MOVE if self.newest.goes_on else Asked.END

    def ask_to_end(self, reason: str) -> None:
        """Ask the attempt to save and end."""
        self._ask(StopRequest(reason=reason))

    def ask_to_move(self, reason: str) -> None:
        """Ask the attempt to save and end, for another one. A request to end has priority."""
        self._ask(StopRequest(reason=reason, goes_on=True))

    def send_by(self, send: Callable[[StopRequest], None]) -> None:
        """Send each request to the ranks by this function, including one that came before."""
        with self._one_at_a_time:
            self._send = send
            self._send_newest()

    @contextmanager
    def following_the_folder(self) -> Iterator[None]:
        """Poll the run folder for a request, in a background thread, while the block runs.

        A request that could not be sent is sent again at each poll.
        """
        thread = threading.Thread(target=self._follow, name="stop-requests", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._has_ended.set()
            # A thread that waits for the storage is left behind.
            thread.join(_CLOSE_S)

    def _follow(self) -> None:
        while not self._has_ended.wait(self._poll_s):
            with self._one_at_a_time:
                self._send_newest()
            try:
                request = stop_request(self._store, self._attempt)
            except EvertrainError as error:
                _log.debug("the request to stop cannot be read: %s", error)
                continue
            if request is not None:
                self._ask(request)

    def _ask(self, request: StopRequest) -> None:
        with self._one_at_a_time:
            if request.replaces(self.newest):
                self.newest = request
                self._send_newest()

    def _send_newest(self) -> None:
        """Send the newest request, if there is one that the ranks do not have."""
        if self._send is None or self.newest is self._sent:
            return
        assert self.newest is not None, "a request stays, or is replaced"
        try:
            self._send(self.newest)
            self._sent = self.newest
        except Exception as error:  # noqa: BLE001 (whatever Ray or torch raises)
            _log.warning("the ranks cannot be asked to stop: %s", error)
