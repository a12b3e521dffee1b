"""How the stages are driven, with Prefect's server and without it: the one place that decides.

The stages run in a thread of the session, as tasks of a flow run where there is one, and as plain
functions where Prefect's server could not even begin one. Prefect's engine tries a request that
fails again for minutes: it is waited for as long as its server answers, and else for seconds.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from prefect import State, Task, runtime
from prefect.exceptions import CancelledRun, ObjectNotFound, TerminationSignal

from flows.timing import SEND_WITHIN_S
from tasks.retries import OPTIONS, is_transient
from tasks.server.connection import ServerConnection
from tasks.server.flow_run import deployment_of_flow_run
from tasks.session import Session, Stages, stopped
from train_core.config import LOCAL
from train_core.errors import StoppedError
from train_core.requests import DriverRequest

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

Start = Callable[..., Callable[[], Any]]
"""Starts a task with its arguments, and gives what waits for its result."""

BACK_WITHIN_S = 3.0
"""How long a server that is away is waited for when the stages have ended."""
END_WITHIN_S = 5.0
"""How long Prefect's engine has to report the end to a server that does not answer."""
SLOW_END_S = 60.0
"""How long to one that does."""
ENDS_WITHIN_S = 10.0
"""How long the stages have to end when the driver was closed."""
_POLL_INTERVAL_S = 0.2
_CANCEL_POLL_INTERVAL_S = 5.0
CANCEL_WITHIN_S = 20.0
"""How long Prefect's worker has to end a flow run that is being cancelled."""

NOT_TOLD = (
    "Prefect does not know that run {run!r} has ended: its server does not answer. The next "
    "retraining that finds it tells it so, or the automation does"
)
NOT_BEGUN = "Prefect has no flow run of run {run!r}: its server did not answer when it began"


def as_tasks(task: Task[..., Any], *arguments: Any) -> Callable[[], Any]:
    """Start the task in the flow run of this context."""
    future = task.submit(*arguments)

    def result() -> Any:
        try:
            return future.result()
        except CancelledRun as error:
            raise _stopped(arguments, error) from None

    return result


def as_functions(task: Task[..., Any], *arguments: Any) -> Callable[[], Any]:
    """Run the task's function without Prefect, tried again as Prefect would."""
    for tries_left in range(OPTIONS["retries"], -1, -1):
        try:
            found = task.fn(*arguments)
            break
        except Exception as error:
            if not (tries_left and is_transient(error)):
                raise
            time.sleep(OPTIONS["retry_delay_seconds"])
    if isinstance(found, State):
        raise _stopped(arguments, CancelledRun(found.message or ""))
    return lambda: found


def _stopped(arguments: tuple[Any, ...], error: CancelledRun) -> Exception:
    request = arguments[0]
    return stopped(request) if isinstance(request, DriverRequest) else error


def drive(session: Session, stages: Stages) -> Any:
    """Run the stages in a thread of their own to their end, and give what they come to.

    SIGINT and SIGTERM ask the driver to save, and raise StoppedError when the stages have ended. A
    SIGTERM that the training outlives (`job_outlives_flow`) raises TerminationSignal.
    """
    try:
        with _noticing_cancellation(session):
            return _outcome_of(session, stages)
    except (KeyboardInterrupt, TerminationSignal) as error:
        if isinstance(error, TerminationSignal) and job_outlives_flow(session):
            session.leave()
            session.wait_until_ended(ENDS_WITHIN_S)
            raise
        # A second one ends the driver at once.
        with suppress(KeyboardInterrupt, TerminationSignal):
            session.close("KILLED")
            session.wait_until_ended(ENDS_WITHIN_S)
        raise stopped(session.request) from None


def _outcome_of(session: Session, stages: Stages) -> Any:
    session.begin(stages)
    while True:
        try:
            return session.outcome()
        except asyncio.CancelledError:
            # Thrown in by Prefect where it could not renew this run's place among those that the
            # deployment may have at once. The run goes on, whoever else begins.
            continue


@contextmanager
def _noticing_cancellation(session: Session) -> Iterator[None]:
    """Send this process SIGTERM where its flow run is cancelled and Prefect's worker does not.

    A worker whose polls of its server have failed for too long never cancels that run again.
    """
    if not deployment_of_flow_run():
        yield
        return
    has_ended, signalling = threading.Event(), threading.Lock()
    own = UUID(str(runtime.flow_run.id))

    def watch() -> None:
        noticed_at = math.inf
        while not has_ended.wait(_CANCEL_POLL_INTERVAL_S):
            # None where the server does not answer: it is as it was.
            is_cancelled = (
                session.server.ask(partial(_is_cancelled, own)) if session.server else None
            )
            if is_cancelled is not None:
                noticed_at = min(noticed_at, time.monotonic()) if is_cancelled else math.inf
            if time.monotonic() - noticed_at > CANCEL_WITHIN_S:
                # A second signal, once the run ends, would cut its saving short.
                with signalling:
                    if not has_ended.is_set():
                        os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, name="cancellation", daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()
        # A signal that is on its way arrives here, and not while the run is saved.
        with signalling:
            pass


def _is_cancelled(flow_run: UUID, client: SyncPrefectClient) -> bool:
    """Whether Prefect's server says so; one that was deleted there is not."""
    try:
        state = client.read_flow_run(flow_run).state
    except ObjectNotFound:
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def job_outlives_flow(session: Session) -> bool:
    """Whether a SIGTERM ends this process only: a cluster trains, and nobody has cancelled.

    On a command line, which no deployment runs, it is a wish that the training ends.
    """
    if session.request.config.ray_address == LOCAL or not deployment_of_flow_run():
        return False
    own, server = UUID(str(runtime.flow_run.id)), session.server
    is_cancelled = None
    if server and server.check_patiently():
        is_cancelled = server.ask(partial(_is_cancelled, own))
    if is_cancelled is None:
        session.tell("whether the run was cancelled is not known: its job is left alone")
    return not is_cancelled


@contextmanager
def connected(session: Session) -> Iterator[ServerConnection]:
    """The session's connection to Prefect's server; what it missed is shown at the end.

    A worker's process ends soon afterwards, also if the server stays away.
    """
    is_opened_here = session.server is None
    server = session.server or ServerConnection(session.tell).__enter__()
    session.server = server
    exit_code = 1
    try:
        yield server
        exit_code = 0
    except (KeyboardInterrupt, StoppedError):
        exit_code = 0
        raise
    finally:
        server.wait_until_shown(BACK_WITHIN_S)
        if deployment_of_flow_run():
            leave_when_prefect_hangs(session, exit_code)
        elif is_opened_here:
            server.__exit__()


class FlowThread(threading.Thread):
    """Prefect's engine runs the flow here, so that nothing of it can hold the main thread."""

    def __init__(self, session: Session, run: Callable[[], State[Any]]) -> None:
        super().__init__(name="prefect flow", daemon=True)
        self._session = session
        self._run_flow = run
        self.has_ended = False
        """Whether Prefect knows how the flow ended."""
        self.failure = ""
        """Why Prefect's engine gave up, if it did."""

    def run(self) -> None:
        """Run the flow; its outcome is the session's."""
        try:
            with self._session.attached():
                self._run_flow()
        except BaseException as error:  # noqa: BLE001 (whatever the engine raises)
            self.failure = f"{type(error).__name__}: {error}"
        else:
            self.has_ended = True


def begin(session: Session, flow: FlowThread | None, stages: Stages) -> None:
    """Begin with the stages: in the flow; without it if Prefect's engine does not come to them."""
    if flow is not None:
        flow.start()
    while not session.wait_until_begun(_POLL_INTERVAL_S):
        is_lost = session.server is None or session.server.is_lost
        if flow is None or not flow.is_alive() or is_lost:
            session.begin(stages, without_flow=True)


def await_prefect(session: Session, flow: threading.Thread) -> bool:
    """Wait until the flow has ended in Prefect, too, as long as its server answers; whether it has.

    `flow` is the thread that Prefect's engine runs in. The session must be closed.
    """
    begin = time.monotonic()
    while flow.is_alive():
        answers = session.server is not None and session.server.answers
        if time.monotonic() - begin > (SLOW_END_S if answers else END_WITHIN_S):
            return False
        flow.join(_POLL_INTERVAL_S)
    return True


def leave_when_prefect_hangs(session: Session, exit_code: int) -> None:
    """End this process of a worker's soon, though Prefect's engine waits for its server.

    Call it when nothing is left to do but Prefect's own; the flow's thread is the main one.
    """

    def leave() -> None:
        session.wait_until_closed()
        if await_prefect(session, threading.main_thread()):
            # What Prefect's threads still have to send gets its time, too.
            time.sleep(SEND_WITHIN_S)
        else:
            session.tell(NOT_TOLD.format(run=session.request.run))
        leave_now(exit_code)

    threading.Thread(target=leave, name="leave", daemon=True).start()


def leave_now(exit_code: int) -> NoReturn:
    """End the process: what Prefect's threads wait to send is not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
