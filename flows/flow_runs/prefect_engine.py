"""Prefect's engine, with a bound on the wait for it: it repeats a failed request for minutes.

On a command line it runs in a thread of its own; in a process of a Prefect worker, in the main
thread. It is waited for while its server answers, and else for seconds; then the process exits.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from prefect import State

from evertrain_flows.flow_runs.endings import END_UNREPORTED, begins_without_flow, engine_timeout_s
from evertrain_flows.timing import TIMING, Timing
from evertrain_tasks.driver_session.session import Session, Stages


class FlowThread(threading.Thread):
    """A thread in which Prefect's engine runs the flow, so that it cannot block the main one."""

    def __init__(self, session: Session, run: Callable[[], State[Any]]) -> None:
        super().__init__(name="prefect flow", daemon=True)
        self._session = session
        self._run_flow = run
        self.has_ended = False
        """Whether the engine has returned, so that Prefect knows how the flow ended."""
        self.failure = ""
        """The error that Prefect's engine raised, if it did."""

    def run(self) -> None:
        """Run the flow; its result goes to the session."""
        try:
            with self._session.attached():
                self._run_flow()
        except BaseException as error:  # noqa: BLE001 (whatever the engine raises)
            self.failure = f"{type(error).__name__}: {error}"
        else:
            self.has_ended = True


def begin(
    session: Session, flow: FlowThread | None, stages: Stages, timing: Timing = TIMING
) -> None:
    """Begin the stages in the flow, or without it if Prefect's engine does not begin them."""
    if flow is not None:
        flow.start()
    while not session.thread.wait_until_begun(timing.poll_interval_s):
        if begins_without_flow(
            engine_is_alive=flow is not None and flow.is_alive(),
            server_is_lost=session.server is None or session.server.is_lost,
        ):
            session.begin(stages, without_flow=True)


def await_prefect(session: Session, flow: threading.Thread, timing: Timing = TIMING) -> bool:
    """Wait, while Prefect's server answers, until the flow has ended there; return whether it has.

    `flow` is the thread that Prefect's engine runs in. The session must be closed.
    """
    begin = time.monotonic()
    while flow.is_alive():
        answers = session.server is not None and session.server.answers
        if time.monotonic() - begin > engine_timeout_s(server_answers=answers, timing=timing):
            return False
        flow.join(timing.poll_interval_s)
    return True


def exit_when_prefect_hangs(session: Session, exit_code: int, timing: Timing = TIMING) -> None:
    """End a worker's process soon, though Prefect's engine waits for its server.

    Call it from the flow, in the main thread, once only the engine's own work is left.
    """

    def wait_and_exit() -> None:
        session.wait_until_closed()
        if await_prefect(session, threading.main_thread(), timing):
            time.sleep(timing.send_s)
        else:
            session.log.add_warning(END_UNREPORTED.format(run=session.request.run))
        exit_now(exit_code)

    threading.Thread(target=wait_and_exit, name="exit", daemon=True).start()


def exit_now(exit_code: int) -> NoReturn:
    """End the process without waiting for Prefect's threads, which may still have to send."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
