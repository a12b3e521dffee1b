"""The session of a flow run: its driver, shared by the tasks of this process.

A task finds its session by the request, so that tasks take and give plain values only. The command
line opens it before Prefect is imported, and Ray starts while Prefect does; a flow that a worker
started opens its own. The flow closes it, with what MLflow shall say of the run. The stages run in
a thread of their own, so that no signal and nothing of Prefect's interrupts a task.
"""

from __future__ import annotations

import contextvars
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import psutil

from train_core.client.driver import Driver, end_status
from train_core.errors import StageError, StoppedError, StorageError
from train_core.log_lines import WARNING, warning_in
from train_core.requests import DriverRequest, Prepared
from train_core.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from tasks.server.connection import ServerConnection

Stages = Callable[["Session"], Any]

REMEMBERED_LINES = 2000
_STARTED_FOR_IT_S = 60
STOPPING = "stopping: a last checkpoint is stored; once more ends at once"


class Session:
    """One request's driver in this process, its log, and what its stages cost.

    Get it from `open_session`; use it as a context manager to close it.
    """

    def __init__(self, request: DriverRequest) -> None:
        self.request = request
        self.stages = ["prepare"]
        """The stages that have begun, in their order."""
        self.seconds: dict[str, float] = {}
        """Wall-clock seconds of each stage; a stage that was retried counts all its tries."""
        self.server: ServerConnection | None = None
        """The connection to Prefect's server, where there is one."""
        self.began_without_flow = False
        """Whether the stages run outside of the flow run, and can show nothing as its artifacts."""
        self._outcome: Future[Any] = Future()
        self._has_begun = threading.Event()
        self._is_ending = False
        self._is_closed = threading.Event()
        self._close_lock = threading.Lock()
        self._lock = threading.Lock()
        self._log_lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=REMEMBERED_LINES)
        self._listeners: list[Callable[[str], None]] = []
        self._begin = time.monotonic()
        now, began_at = time.time(), psutil.Process().create_time()
        # A process that has lived for long, as a notebook, was not started for this run.
        self.began_at = began_at if now - began_at < _STARTED_FOR_IT_S else now
        """When the process began that was started for the run, in seconds since 1970."""
        self._driver = self._new_driver()
        self._is_prepared = self._has_failed = False

    def _new_driver(self) -> Driver:
        request = self.request.model_copy(update={"began_at": self.began_at})
        return Driver(request, self._hear)

    def prepared(self) -> Prepared:
        """The outcome of the driver's checks; of another driver's once that of the last is told.

        Raises ConfigError, RunBusyError, or what ended the driver.
        """
        driver = self._usable_driver()
        try:
            found = driver.prepared()
        except Exception:
            self._has_failed = True
            raise
        self._is_prepared = True
        self.seconds.setdefault("prepare", time.monotonic() - self._begin)
        return found

    def begin(self, stages: Stages, *, without_flow: bool = False) -> None:
        """Run the stages in a thread of their own, in the caller's context.

        `without_flow`: the caller is not in the flow run's context. A second call changes nothing:
        the stages run once. Raises StoppedError if the session was closed before they began.
        """
        with self._lock:
            if self._has_begun.is_set():
                return
            self._refuse_ending()
            self.began_without_flow = without_flow
            self._has_begun.set()
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._run, stages), name="stages", daemon=True
        )
        thread.start()

    def wait_until_begun(self, timeout_s: float) -> bool:
        """Whether the stages have begun within the time."""
        return self._has_begun.wait(timeout_s)

    def outcome(self) -> Any:
        """What the stages come to; waits for it. Raises what they raise."""
        return self._outcome.result()

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Whether the stages have ended within the time, in whatever way."""
        with suppress(Exception):
            self._outcome.exception(timeout_s)
        return self._outcome.done()

    def _run(self, stages: Stages) -> None:
        try:
            self._outcome.set_result(stages(self))
        except Exception as error:  # noqa: BLE001 (whoever waits for the outcome raises it)
            self._outcome.set_exception(error)
        except BaseException as error:  # noqa: BLE001 (who waits must not take it for one of its own)
            self._outcome.set_exception(RuntimeError(f"the stages were interrupted: {error!r}"))

    @contextmanager
    def running(self, stage: str) -> Iterator[Driver]:
        """A checked, living driver for one stage, whose time is taken.

        Raises StoppedError if the session is closed meanwhile, which ends the stage.
        """
        self.stages.append(stage)
        begin = time.monotonic()
        try:
            self._refuse_ending()
            self.prepared()
            yield self._driver
        except StoppedError:
            raise
        except Exception as error:
            self._refuse_ending()
            if not isinstance(error, StageError):
                raise
            # What the first rank that failed says, at the end of all that Ray and the others do.
            if error.traceback:
                self._hear(error.traceback)
            raise
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0) + time.monotonic() - begin

    def listen(self, listener: Callable[[str], None]) -> None:
        """Give `listener` each line of the driver's log, those already heard too."""
        with self._log_lock:
            for line in self._lines:
                listener(line)
            self._listeners.append(listener)

    def log_to(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        """Log each line, those already heard too, with warnings as such."""

        def log(line: str) -> None:
            level = logging.INFO if warning_in(line) is None else logging.WARNING
            logger.log(level, "%s", line)

        self.listen(log)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make this the only session that `open_session` gives in the context, even once closed."""
        token = _only.set(self)
        try:
            yield
        finally:
            _only.reset(token)

    def tell(self, warning: str) -> None:
        """Say something that somebody should look at, in the terminal and in the log."""
        self._hear(f"{WARNING}{warning}")

    def close(self, status: str = "FINISHED") -> None:
        """End the driver: FINISHED, FAILED or KILLED. The request may be opened again.

        Who closes second waits until it is closed.
        """
        self._end()
        if status == "KILLED" and self.stages[-1] != STOPPING:
            self.stages.append(STOPPING)
        try:
            with self._close_lock:
                self._driver.close(status)
        finally:
            self._is_closed.set()

    def leave(self) -> None:
        """Let a job on a cluster go on by itself; the request may be opened again."""
        self._end()
        self._driver.leave()
        self._is_closed.set()

    def wait_until_closed(self) -> None:
        """Wait until the driver has ended."""
        self._is_closed.wait()

    def _end(self) -> None:
        with _lock:
            if _sessions.get(_key(self.request)) is self:
                del _sessions[_key(self.request)]
        with self._lock:
            self._is_ending = True

    def _refuse_ending(self) -> None:
        if self._is_ending:
            raise stopped(self.request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(end_status(kind))

    def _usable_driver(self) -> Driver:
        # A driver that died took its Ray with it: a retry needs a new one.
        with self._lock:
            self._refuse_ending()
            if self._has_failed or (self._is_prepared and not self._driver.is_alive):
                self._driver.close("FAILED")
                self._hear(f"{WARNING}the driver process ended; another one goes on with the run")
                self._driver = self._new_driver()
                self._has_failed = self._is_prepared = False
            return self._driver

    def _hear(self, line: str) -> None:
        line = _COLOURS.sub("", line)
        with self._log_lock:
            self._lines.append(line)
            for listener in list(self._listeners):
                try:
                    listener(line)
                except Exception:  # noqa: BLE001 (a full disk, a logger of Prefect's)
                    # Whoever cannot listen must not keep the driver from being heard.
                    self._listeners.remove(listener)


def stopped(request: DriverRequest) -> StoppedError:
    """What is left of a run that was stopped: its newest checkpoint, as far as can be told."""
    try:
        checkpoints = RunFolder(request.storage, request.run).checkpoints()
    except StorageError:
        checkpoints = []
    return StoppedError(request.run, checkpoints[-1].step if checkpoints else 0)


def run_logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """Prefect's logger of the flow or task run that calls; outside of one, an ordinary one."""
    from prefect import get_run_logger
    from prefect.exceptions import MissingContextError

    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("tasks")


def open_session(request: DriverRequest) -> Session:
    """The open session of `request`, or a new one, whose driver starts at once."""
    only = _only.get()
    if only is not None:
        return only
    with _lock:
        key = _key(request)
        if key not in _sessions:
            _sessions[key] = Session(request)
        return _sessions[key]


def session_of(request: DriverRequest) -> Session:
    """The session that the flow of this task has open.

    Raises RuntimeError if there is none: a task that outlives its flow starts nothing new.
    """
    with _lock:
        session = _sessions.get(_key(request))
    if session is None:
        raise RuntimeError(
            f"no session is open for run {request.run!r}: call the task in a flow, within "
            "`with open_session(request)`"
        )
    return session


# Ray colours its workers' lines.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_only: contextvars.ContextVar[Session | None] = contextvars.ContextVar("only", default=None)
_lock = threading.Lock()
_sessions: dict[str, Session] = {}


def _key(request: DriverRequest) -> str:
    return request.model_dump_json()
