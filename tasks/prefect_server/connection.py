"""The connection to Prefect's server: it may be away, and nothing waits for it.

Prefect's own client tries a request again for minutes. evertrain's questions and artifacts go
through this connection: a request takes seconds at most, and none is tried after a failure until
the server answers again. Artifacts that could not be sent are kept, and sent then.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

import httpx
from prefect.client.orchestration import get_client
from prefect.context import SettingsContext, get_settings_context
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

from evertrain_tasks.prefect_server.log_filters import quiet_prefects_services
from evertrain_tasks.timing import TIMING, Timing

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

R = TypeVar("R")

LOST_AFTER_FAILURES = 3
"""One slow answer of a busy machine is no outage."""

LOST = "Prefect's server does not answer ({reason}): the run goes on without it"
BACK = "Prefect's server answers again"


class ServerConnection:
    """Asks Prefect's server, shows artifacts there, and observes whether it answers.

    `warn` is called with one line when the server is lost and with one when it is back. Use it as a
    context manager: a thread polls the server meanwhile. For a question or two, `closing` of
    contextlib does without that thread. All methods may be called from any thread. A request after
    the end opens a client of its own.
    """

    def __init__(self, warn: Callable[[str], None], timing: Timing = TIMING) -> None:
        self._warn = warn
        self._timing = timing
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._client: SyncPrefectClient | None = None
        self._num_requests = 0
        self._failures = 0
        self._is_lost = False
        self._pending: dict[str, Callable[[SyncPrefectClient], object]] = {}
        self._is_closed = threading.Event()
        # In the caller's context, which has Prefect's settings, the server's address among them.
        context, settings = contextvars.copy_context(), get_settings_context()
        self._profile = settings.profile
        # Made once: Prefect reads all of them anew to change one.
        self._settings = settings.settings.copy_with_update({PREFECT_CLIENT_MAX_RETRIES: 0})
        self._thread = threading.Thread(
            target=context.run, args=(self._watch,), name="prefect server", daemon=True
        )

    def __enter__(self) -> Self:
        quiet_prefects_services()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the polling, and close the client once no request is under way."""
        # A request under way ends by its own time-out; the thread is a daemon.
        self._is_closed.set()
        with self._lock:
            self._close_unused_client()

    @property
    def answers(self) -> bool:
        """Whether the last request was answered."""
        return self._failures == 0

    @property
    def is_lost(self) -> bool:
        """Whether a warning said that the server is lost, and none yet that it is back."""
        return self._is_lost

    def check(self) -> bool:
        """Ask the server now; return whether it answers."""
        try:
            with self._requesting() as client:
                client.api_version()
        except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
            self._note_failure(error)
        else:
            self._note_answer()
        return self.answers

    def wait_for_answer(self) -> bool:
        """Ask the server until it answers or counts as lost; return whether it answers."""
        while not self.check() and not self._is_lost:
            self._is_closed.wait(self._timing.server_wait_interval_s)
        return self.answers

    def ask(self, question: Callable[[SyncPrefectClient], R]) -> R | None:
        """The answer to a question; None, without a request, while the server is away."""
        if not self.answers:
            return None
        try:
            with self._requesting() as client:
                return question(client)
        except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
            self._failed(error, "Prefect's server refuses to answer")
            return None

    def show(self, key: str, send: Callable[[SyncPrefectClient], object]) -> None:
        """Show something there: now, or once the server answers again.

        While the server is away only the newest of the same `key` is kept.
        """
        with self._lock:
            self._pending[key] = send
        if self.answers:
            self._show_pending()

    def wait_until_shown(self, timeout_s: float) -> bool:
        """Wait until the server has all artifacts; return whether it answers and has them."""
        deadline = time.monotonic() + timeout_s
        while self._pending or not self.answers:
            if time.monotonic() >= deadline:
                return False
            self.check()
            self._show_pending()
            left_s = max(0.0, deadline - time.monotonic())
            self._is_closed.wait(min(self._timing.server_wait_interval_s, left_s))
        return True

    def _watch(self) -> None:
        while not self._is_closed.wait(self._timing.server_poll_interval_s):
            if self.check():
                self._show_pending()

    @contextmanager
    def _requesting(self) -> Iterator[SyncPrefectClient]:
        with SettingsContext(profile=self._profile, settings=self._settings):
            with self._lock:
                if self._client is None:
                    # Settings of its own, so that it is not the patient client of a running flow.
                    limits = {"timeout": self._timing.request_timeout_s}
                    self._client = get_client(httpx_settings=limits, sync_client=True).__enter__()
                client = self._client
                self._num_requests += 1
            try:
                yield client
            finally:
                with self._lock:
                    self._num_requests -= 1
                    self._close_unused_client()

    def _close_unused_client(self) -> None:
        """Close it if the connection has ended and nobody uses it; the lock is held."""
        if self._client and self._is_closed.is_set() and not self._num_requests:
            self._client.__exit__(None, None, None)
            self._client = None

    def _show_pending(self) -> None:
        # One at a time; pending until the server has it, so that `wait_until_shown` waits for it.
        with self._sending:
            while self.answers:
                with self._lock:
                    key, send = next(iter(self._pending.items()), ("", None))
                if send is None:
                    return
                try:
                    with self._requesting() as client:
                        send(client)
                except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
                    if self._failed(error, f"{key} is not shown in Prefect"):
                        return
                with self._lock:
                    if self._pending.get(key) is send:
                        del self._pending[key]

    def _failed(self, error: Exception, message: str) -> bool:
        """Record a failed request; return whether a later one may succeed."""
        if is_outage(error):
            self._note_failure(error)
            return True
        self._warn(f"{message}: {_one_line(error)}")
        return False

    def _note_failure(self, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            is_news = self._failures >= LOST_AFTER_FAILURES and not self._is_lost
            self._is_lost |= is_news
        if is_news:
            self._warn(LOST.format(reason=_one_line(error)))

    def _note_answer(self) -> None:
        with self._lock:
            self._failures = 0
            is_news, self._is_lost = self._is_lost, False
        if is_news:
            self._warn(BACK)


def is_outage(error: Exception) -> bool:
    """Whether the server is away or refuses everybody, so that it may answer later."""
    if isinstance(error, PrefectHTTPStatusError):
        code = error.response.status_code
        return code >= 500 or code in (401, 403, 408, 429)
    return isinstance(error, (httpx.TransportError, OSError))


def _one_line(error: Exception) -> str:
    if isinstance(error, PrefectHTTPStatusError):
        return f"HTTP {error.response.status_code}"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
