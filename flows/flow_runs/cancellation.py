"""A flow run that is cancelled in Prefect ends, also where Prefect's worker does not end it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from prefect import runtime
from prefect.exceptions import ObjectNotFound

from evertrain_flows.flow_runs.endings import Cancellation
from evertrain_flows.timing import TIMING, Timing
from evertrain_tasks.driver_session.session import Session
from evertrain_tasks.prefect_server.flow_run import deployment_of_flow_run

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


@contextmanager
def ending_when_cancelled(session: Session, timing: Timing = TIMING) -> Iterator[None]:
    """Send this process SIGTERM if its flow run is cancelled and Prefect's worker does not.

    A worker whose polls of its server have failed for too long never cancels that run again.
    """
    if not deployment_of_flow_run():
        yield
        return
    has_ended, signalling = threading.Event(), threading.Lock()
    own = UUID(str(runtime.flow_run.id))

    def watch() -> None:
        cancellation = Cancellation()
        while not has_ended.wait(timing.cancel_poll_interval_s):
            now, server = time.monotonic(), session.server
            is_cancelled = server.ask(partial(_is_cancelled, own)) if server else None
            cancellation = cancellation.observed(is_cancelled=is_cancelled, now=now)
            if cancellation.is_overdue(now, timing):
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


def is_flow_run_cancelled(session: Session) -> bool | None:
    """Whether this flow run is cancelled; None if Prefect's server does not answer."""
    own, server = UUID(str(runtime.flow_run.id)), session.server
    if server and server.wait_for_answer():
        return server.ask(partial(_is_cancelled, own))
    return None


def _is_cancelled(flow_run: UUID, client: SyncPrefectClient) -> bool:
    """Whether the flow run is cancelled on the server; a deleted flow run is not."""
    try:
        state = client.read_flow_run(flow_run).state
    except ObjectNotFound:
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())
