"""How ranks learn that their attempt was asked to stop, without the loop waiting for storage.

Rank 0 polls, and the control message of the next step tells the others. A validation may be long
and has no control messages: during a validation every rank polls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from train_core.errors import EvertrainError
from train_core.storage.coordination.stop_request import stop_request
from train_core.storage.objects.store import Store

LISTEN_EVERY_S = 1.0
_log = logging.getLogger(__name__)


class StopListener:
    """Looks for the request about once a second, in a thread of its own."""

    def __init__(self, store: Store, attempt: int, *, is_enabled: bool) -> None:
        self.is_asked = False
        """Whether somebody wants this attempt to save and end."""
        self._store = store
        self._attempt = attempt
        self._always_looks = is_enabled
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if is_enabled:
            self._begin()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look while the block runs, on ranks that do not always look, too."""
        if self._always_looks:
            yield
            return
        self._begin()
        try:
            yield
        finally:
            # It ends by itself; one that waits for its storage keeps nobody.
            self._ended.set()

    def look(self) -> None:
        """Look once."""
        try:
            request = stop_request(self._store, self._attempt)
        except EvertrainError as error:
            _log.debug("the request to stop cannot be read: %s", error)
            return
        if request and self._always_looks:
            _log.info("asked to stop: %s; a last checkpoint is saved", request.reason)
        self.is_asked |= bool(request)

    def close(self) -> None:
        """End the thread; one that waits for its storage is left behind."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LISTEN_EVERY_S)

    def _begin(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._listen, args=(self._ended,), name="stop-listener", daemon=True
        )
        self._thread.start()

    def _listen(self, ended: threading.Event) -> None:
        while not self.is_asked and not ended.wait(LISTEN_EVERY_S):
            self.look()
