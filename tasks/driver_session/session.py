"""The session of a flow run: its driver, shared by the tasks of this process.

A task finds its session in its context, so that its arguments and results are plain values: Prefect
runs each task in a copy of the context that submits it. The command line opens the session before
Prefect is imported, and Ray starts while Prefect does; a flow that a worker started opens its own.
The flow closes it, with the status that MLflow shall show. The stages run in a thread of their own,
so that no signal and nothing of Prefect's interrupts a task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import psutil

from evertrain_tasks.driver_session.session_log import SessionLog
from evertrain_tasks.driver_session.stages_thread import StagesThread
from evertrain_tasks.timing import TIMING
from train_core.client.driver_handle import Driver, end_status
from train_core.errors import StageError, StoppedError, StorageError
from train_core.policy.end_status import EndStatus
from train_core.requests import Prepared, Request
from train_core.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from evertrain_tasks.prefect_server.connection import ServerConnection

Stages = Callable[["Session"], Any]

STOPPING = "stopping: a last checkpoint is stored; once more ends at once"


class Session:
    """One request's driver in this process, its log, and the seconds that its stages took.

    Get it from `open_session`; use it as a context manager to close it.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.log = SessionLog()
        self.thread = StagesThread()
        """The thread of the stages; `begin` starts it."""
        self.stages = ["prepare"]
        """The stages that have begun, in their order."""
        self.seconds: dict[str, float] = {}
        """Wall-clock seconds of each stage; a stage that was retried counts all its tries."""
        self.server: ServerConnection | None = None
        """The connection to Prefect's server, where there is one."""
        self._is_ending = False
        self._is_closed = threading.Event()
        self._close_lock = threading.Lock()
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self.began_at = _began_at(TIMING.newest_start_s)
        """When the process began that was started for the run, in seconds since 1970."""
        self._driver = self._new_driver()
        self._is_prepared = self._has_failed = False
        self._logged: Exception | None = None
        """The newest error that the log has."""

    def _new_driver(self) -> Driver:
        request = self.request.model_copy(update={"began_at": self.began_at})
        return Driver.start(request, self.log.add)

    def prepared(self) -> Prepared:
        """The result of the driver's checks; a driver that failed or died is replaced by a new one.

        Raises ConfigError, RunBusyError, or the error that ended the driver.
        """
        driver = self._usable_driver()
        try:
            prepared = driver.prepared()
        except Exception as error:
            self._has_failed = True
            self._log_error(error)
            raise
        self._is_prepared = True
        self.seconds.setdefault("prepare", time.monotonic() - self._begin)
        return prepared

    def begin(self, stages: Stages, *, without_flow: bool = False) -> None:
        """Run the stages in a thread of their own, in the caller's context.

        `without_flow`: the caller is not in the flow run's context. A second call changes nothing:
        the stages run once. Raises StoppedError if the session was closed before they began.
        """
        with self._lock:
            if not self.thread.has_begun:
                self.raise_if_ending()
                self.thread.begin(partial(stages, self), without_flow=without_flow)

    @contextmanager
    def running(self, stage: str) -> Iterator[Driver]:
        """A checked, living driver for one stage, whose seconds are recorded.

        Raises StoppedError if the session is closed meanwhile, which ends the stage.
        """
        self.stages.append(stage)
        begin = time.monotonic()
        try:
            self.raise_if_ending()
            self.prepared()
            yield self._driver
        except StoppedError:
            raise
        except Exception as error:
            self.raise_if_ending()
            self._log_error(error)
            raise
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0) + time.monotonic() - begin

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Make this the session of the calling context, even once it is closed."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def close(self, status: EndStatus = EndStatus.FINISHED) -> None:
        """End the driver, with how the run ended. The request may be opened again.

        A second call waits until the first has closed it.
        """
        self._end()
        if status == EndStatus.KILLED and self.stages[-1] != STOPPING:
            self.stages.append(STOPPING)
        try:
            with self._close_lock:
                self._driver.close(status)
        finally:
            self._is_closed.set()

    def detach(self) -> None:
        """Let a job on a cluster go on by itself; the request may be opened again."""
        self._end()
        self._driver.detach()
        self._is_closed.set()

    def wait_until_closed(self) -> None:
        """Wait until the driver has ended."""
        self._is_closed.wait()

    def raise_if_ending(self) -> None:
        """Raise StoppedError if the session is closed, or is being closed."""
        if self._is_ending:
            raise stopped(self.request)

    def _log_error(self, error: Exception) -> None:
        """End the log with the error, below the lines of Ray and of all ranks.

        A log that an error names is there therefore, and has the first failed rank's traceback.
        """
        if error is self._logged:
            return
        self._logged = error
        if isinstance(error, StageError) and error.traceback:
            self.log.add(error.traceback)
        self.log.add(str(error))

    def _end(self) -> None:
        with self._lock:
            self._is_ending = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(end_status(kind))

    def _usable_driver(self) -> Driver:
        # The Ray of a driver that died is gone, too: a retry needs a new driver.
        with self._lock:
            self.raise_if_ending()
            if self._has_failed or (self._is_prepared and not self._driver.is_alive):
                self._driver.close(EndStatus.FAILED)
                self.log.add_warning("the driver ended; another one goes on with the run")
                self._driver = self._new_driver()
                self._has_failed = self._is_prepared = False
            return self._driver


def _began_at(newest_start_s: float) -> float:
    """When this process began; now, if it is too old to have been started for the run."""
    now, began_at = time.time(), float(psutil.Process().create_time())
    return began_at if now - began_at < newest_start_s else now


def stopped(request: Request) -> StoppedError:
    """The error of a run that was stopped, with the step of its newest checkpoint, 0 if unknown."""
    try:
        newest = RunFolder(request.storage, request.run).newest()
    except StorageError:
        newest = None
    return StoppedError(request.run, newest.step if newest else 0)


@contextmanager
def open_session(request: Request) -> Iterator[Session]:
    """A new session, whose driver starts at once; it is closed at the end of the block.

    In a context that is attached to a session of an equal request, that one: the command line opens
    it in one thread, and the flow runs in another.
    """
    current = _current.get()
    session = current if current and current.request == request else Session(request)
    with session.attached(), session:
        yield session


def session_of(request: Request) -> Session:
    """The session of the flow that calls this task with its request.

    Raises RuntimeError if this context has none of that request, and StoppedError once it is
    closed: a task that outlives its flow starts nothing new.
    """
    session = _current.get()
    if session is None or session.request != request:
        raise RuntimeError(
            f"no session is open for run {request.run!r}: call the task in a flow, within "
            "`with open_session(request)`"
        )
    session.raise_if_ending()
    return session


_current: ContextVar[Session | None] = ContextVar("session", default=None)
