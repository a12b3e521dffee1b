"""How a flow drives its stages, with Prefect's server and without it.

The stages run in a thread of the session, as tasks of a flow run where there is one, and as plain
functions where Prefect's server could not even begin one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, Protocol, TypeVar

from prefect import State, Task
from prefect.exceptions import CancelledRun, TerminationSignal

from evertrain_flows.flow_runs.cancellation import ending_when_cancelled, is_flow_run_cancelled
from evertrain_flows.flow_runs.endings import job_outlives_flow
from evertrain_flows.flow_runs.prefect_engine import exit_when_prefect_hangs
from evertrain_flows.timing import TIMING
from evertrain_tasks.driver_session.session import Session, Stages, stopped
from evertrain_tasks.prefect_server.connection import ServerConnection
from evertrain_tasks.prefect_server.flow_run import deployment_of_flow_run
from evertrain_tasks.retries import OPTIONS, is_transient
from train_core.config import LOCAL
from train_core.errors import StoppedError
from train_core.policy.end_status import EndStatus
from train_core.requests import Request

P = ParamSpec("P")
R = TypeVar("R")


class Start(Protocol):
    """How the stages of a flow are started: with Prefect or without it."""

    def __call__(self, task: Task[P, R], *arguments: P.args, **named: P.kwargs) -> Callable[[], R]:
        """Start a task with its arguments; the function waits for its result."""


def as_tasks(task: Task[P, R], *arguments: P.args, **named: P.kwargs) -> Callable[[], R]:
    """Start the task in the flow run of this context."""
    future = task.submit(*arguments, **named)

    def result() -> R:
        try:
            return future.result()
        except CancelledRun as error:
            raise _stopped(arguments, error) from None

    return result


def as_functions(task: Task[P, R], *arguments: P.args, **named: P.kwargs) -> Callable[[], R]:
    """Run the task's function without Prefect, tried again as Prefect would."""
    for tries_left in range(OPTIONS["retries"], -1, -1):
        try:
            result = task.fn(*arguments, **named)
            break
        except Exception as error:
            if not (tries_left and is_transient(error)):
                raise
            time.sleep(OPTIONS["retry_delay_seconds"])
    if isinstance(result, State):
        raise _stopped(arguments, CancelledRun(result.message or ""))
    return lambda: result


def _stopped(arguments: tuple[Any, ...], error: CancelledRun) -> Exception:
    request = arguments[0]
    return stopped(request) if isinstance(request, Request) else error


def drive(session: Session, stages: Stages) -> Any:
    """Run the stages in a thread of their own to their end, and return their result.

    SIGINT and SIGTERM ask the driver to save, and raise StoppedError when the stages have ended. A
    SIGTERM that the training outlives (`job_outlives_flow`) raises TerminationSignal.
    """
    try:
        with ending_when_cancelled(session):
            return _outcome_of(session, stages)
    except (KeyboardInterrupt, TerminationSignal) as error:
        if isinstance(error, TerminationSignal) and _outlives_flow(session):
            session.detach()
            session.thread.wait_until_ended(TIMING.stages_end_s)
            raise
        # A second one ends the driver at once.
        with suppress(KeyboardInterrupt, TerminationSignal):
            session.close(EndStatus.KILLED)
            session.thread.wait_until_ended(TIMING.stages_end_s)
        raise stopped(session.request) from None


def _outlives_flow(session: Session) -> bool:
    is_deployed = deployment_of_flow_run() is not None
    is_on_cluster = session.request.config.ray_address != LOCAL
    is_cancelled = None
    if is_deployed and is_on_cluster:
        is_cancelled = is_flow_run_cancelled(session)
        if is_cancelled is None:
            session.log.add_warning(
                "whether the run was cancelled is not known: its job is left alone"
            )
    return job_outlives_flow(
        is_deployed=is_deployed, is_on_cluster=is_on_cluster, is_cancelled=is_cancelled
    )


def _outcome_of(session: Session, stages: Stages) -> Any:
    session.begin(stages)
    while True:
        try:
            return session.thread.result()
        except asyncio.CancelledError:
            # Prefect raises it in this thread if it could not renew the run's slot under the
            # deployment's concurrency limit. The run goes on, even if another one begins meanwhile.
            continue


@contextmanager
def connected(session: Session) -> Iterator[ServerConnection]:
    """The session's connection to Prefect's server; artifacts that it missed are sent at the end.

    A process of a Prefect worker ends soon afterwards, even if the server stays away.
    """
    is_opened_here = session.server is None
    server = session.server or ServerConnection(session.log.add_warning).__enter__()
    session.server = server
    exit_code = 1
    try:
        yield server
        exit_code = 0
    except (KeyboardInterrupt, StoppedError):
        exit_code = 0
        raise
    finally:
        server.wait_until_shown(TIMING.server_back_s)
        if deployment_of_flow_run():
            exit_when_prefect_hangs(session, exit_code)
        elif is_opened_here:
            server.__exit__()
