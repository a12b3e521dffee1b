"""The connection to Prefect's server: it may be away, and nothing waits for it.

Prefect's own client tries a request again for minutes. What evertrain itself asks or shows goes
through here: a request takes seconds at most, and none is tried after a failure until the server
answers again. What could not be shown is kept, and shown then.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

import httpx
from prefect.client.orchestration import get_client
from prefect.context import SettingsContext, get_settings_context
from prefect.exceptions import CancelledRun, PrefectHTTPStatusError
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

R = TypeVar("R")

REQUEST_TIMEOUT_S = 2.0
POLL_INTERVAL_S = 2.0
LOST_AFTER_FAILURES = 3
"""One slow answer of a busy machine is no outage."""

LOST = "Prefect's server does not answer ({reason}): the run goes on without it"
BACK = "Prefect's server answers again"


class ServerConnection:
    """Whether Prefect's server answers, and what is asked of it and shown there.

    `tell` gets one line when the server is lost and one when it is back. Use it as a context
    manager: a thread looks at the server meanwhile. All methods may be called from any thread.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._client: SyncPrefectClient | None = None
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
        # A request on its way ends by its own timeout; the thread is a daemon.
        self._is_closed.set()

    @property
    def answers(self) -> bool:
        """Whether the last request was answered."""
        return self._failures == 0

    @property
    def is_lost(self) -> bool:
        """Whether the server was told to be lost, and not yet to be back."""
        return self._is_lost

    def check(self) -> bool:
        """Ask the server now whether it is there; whether it is."""
        try:
            with self._requesting() as client:
                client.api_version()
        except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
            self._note_failure(error)
        else:
            self._note_answer()
        return self.answers

    def check_patiently(self) -> bool:
        """Ask the server as often as one answers late that is there; whether it is."""
        while not self.check() and not self._is_lost:
            self._is_closed.wait(POLL_INTERVAL_S / 4)
        return self.answers

    def ask(self, question: Callable[[SyncPrefectClient], R]) -> R | None:
        """The answer to a question; None if the server is away, which is not asked then."""
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

        Of what could not be shown under the same `key` only the newest is kept.
        """
        with self._lock:
            self._pending[key] = send
        if self.answers:
            self._show_pending()

    def wait_until_shown(self, timeout_s: float) -> bool:
        """Wait until the server has what was to be shown; whether it answers and has it."""
        deadline = time.monotonic() + timeout_s
        while self._pending or not self.answers:
            if time.monotonic() >= deadline:
                return False
            self.check()
            self._show_pending()
            self._is_closed.wait(min(POLL_INTERVAL_S / 4, max(0, deadline - time.monotonic())))
        return True

    def _watch(self) -> None:
        while not self._is_closed.wait(POLL_INTERVAL_S):
            if self.check():
                self._show_pending()

    @contextmanager
    def _requesting(self) -> Iterator[SyncPrefectClient]:
        with SettingsContext(profile=self._profile, settings=self._settings):
            with self._lock:
                if self._client is None:
                    # Settings of its own, so that it is not the patient client of a running flow.
                    limits = {"timeout": REQUEST_TIMEOUT_S}
                    self._client = get_client(httpx_settings=limits, sync_client=True)
            yield self._client

    def _show_pending(self) -> None:
        # One at a time, and in its place until the server has it: whoever waits sees it there.
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

    def _failed(self, error: Exception, what: str) -> bool:
        """Note a failed request; whether another time may help."""
        if is_outage(error):
            self._note_failure(error)
            return True
        self._tell(f"{what}: {_one_line(error)}")
        return False

    def _note_failure(self, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            is_news = self._failures >= LOST_AFTER_FAILURES and not self._is_lost
            self._is_lost |= is_news
        if is_news:
            self._tell(LOST.format(reason=_one_line(error)))

    def _note_answer(self) -> None:
        with self._lock:
            self._failures = 0
            is_news, self._is_lost = self._is_lost, False
        if is_news:
            self._tell(BACK)


def is_outage(error: Exception) -> bool:
    """Whether the server is away or refuses everybody, so that it may answer later."""
    if isinstance(error, PrefectHTTPStatusError):
        code = error.response.status_code
        return code >= 500 or code in (401, 403, 408, 429)
    return isinstance(error, (httpx.TransportError, OSError))


def quiet_prefects_services() -> None:
    """Keep Prefect's background services from printing each event and line that they cannot send.

    Whether the server is there is told by the connection, once.
    """
    # "--- Error logging to API ---" for each batch of lines.
    logging.raiseExceptions = False
    # Filters stay where Prefect sets its loggers up anew, which levels do not. The services log
    # whole events; two of them use loggers of their own names.
    for name in (
        "prefect._internal.concurrency",
        "prefect.events.clients",
        "prefect.concurrency",
        "prefect.FlowRunSuspendingObserver",
        "EventsWorker",
        "APILogWorker",
    ):
        _add_filter(name, _is_urgent)
    # asyncio tells of the observer's task, too.
    _add_filter("asyncio", _is_no_observer)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        # A run that could not renew its place among those that its deployment may have at once goes
        # on.
        _add_filter(name, _is_no_renewal)
        _add_filter(name, _is_no_traceback_of_a_cancel)


def _add_filter(logger: str, keeps: Callable[[logging.LogRecord], bool]) -> None:
    found = logging.getLogger(logger)
    if keeps not in found.filters:
        found.addFilter(keeps)


def _is_urgent(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.CRITICAL


def _is_no_observer(record: logging.LogRecord) -> bool:
    return "FlowRunSuspendingObserver" not in record.getMessage()


def _is_no_renewal(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Concurrency lease renewal failed")


def _is_no_traceback_of_a_cancel(record: logging.LogRecord) -> bool:
    """A wanted end is no error: Prefect's engine tells it as one, and then with its stack."""
    if record.getMessage().startswith("Finished in state Cancelled"):
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return not (record.exc_info and isinstance(record.exc_info[1], CancelledRun))


def _one_line(error: Exception) -> str:
    if isinstance(error, PrefectHTTPStatusError):
        return f"HTTP {error.response.status_code}"
    said = str(error).strip().splitlines()
    return said[0] if said else type(error).__name__
