"""Crash loops: the bound on flow runs that crash and are run again by an automation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from uuid import UUID

from prefect import State, runtime
from prefect.events import emit_event

from evertrain_tasks.driver_session.session_log import run_logger
from evertrain_tasks.prefect_server.connection import ServerConnection
from evertrain_tasks.prefect_server.flow_run import deployment_of_flow_run
from train_core.client.isolated import mirror_run
from train_core.errors import EvertrainError, GaveUpError, RunBusyError
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder

MAX_CRASHES = 5
"""How often in a row a flow run may crash without a new checkpoint."""


def refuse_crash_loop(request: DriverRequest) -> None:
    """Raise GaveUpError if the flow run crashed MAX_CRASHES times without a new checkpoint.

    An automation runs a crashed flow run again, without a bound, but not a failed one.
    """
    folder = RunFolder(request.storage, request.run)
    try:
        if not _is_crash_loop(folder):
            return
        if folder.exists():
            held = lease.acquire(folder.store, folder.name)
            held.end = EndStatus.FAILED
            held.release()
    except RunBusyError:
        # Only flows crashed; the job on the cluster works.
        return
    except EvertrainError as error:
        run_logger().warning("whether earlier runs came to anything is not known: %s", error)
        return
    if request.tracking_uri and folder.exists():
        # No driver starts that would set the status in MLflow.
        try:
            mirror_run(folder, request.tracking_uri)
        except EvertrainError as error:
            run_logger().warning("MLflow may show the run as running: %s", error)
    raise GaveUpError(
        "prepare",
        f"this flow run died {MAX_CRASHES} times in a row without a new checkpoint: look for "
        f"why, then retry it, or go on with run {request.run!r} in a new flow run of that name",
    )


def announce_schedule() -> None:
    """Send the event of a scheduled flow run's first state, which Prefect's scheduler leaves out.

    Automations handle the events of a flow run in their order, and wait 15 minutes for one that is
    missing. Without it, a crashed flow run that a schedule made less than five minutes before it
    began would be run again with that delay.
    """
    if not deployment_of_flow_run() or runtime.flow_run.run_count > 1:
        return
    own = UUID(str(runtime.flow_run.id))
    with _answering_server() as server:
        flow_run = server.ask(lambda client: client.read_flow_run(own))
        states = server.ask(lambda client: client.read_flow_run_states(own))
    if flow_run is None or not states or not flow_run.auto_scheduled:
        return
    first = min(states, key=lambda one: one.timestamp)
    # The id of a state is that of its event.
    emit_event(
        f"prefect.flow-run.{first.name}",
        resource={
            "prefect.resource.id": f"prefect.flow-run.{own}",
            "prefect.resource.name": flow_run.name,
        },
        occurred=first.timestamp,
        id=first.id,
    )


def _is_crash_loop(folder: RunFolder) -> bool:
    # `run_count` includes the run that goes on now.
    if not deployment_of_flow_run() or runtime.flow_run.run_count <= MAX_CRASHES:
        return False
    own = UUID(str(runtime.flow_run.id))
    with _answering_server() as server:
        states = server.ask(lambda client: client.read_flow_run_states(own))
    if states is None:
        return False
    newest = folder.newest()
    saved_at = datetime.fromisoformat(newest.manifest.created_at) if newest else None
    return is_crash_loop(states, saved_at)


@contextmanager
def _answering_server() -> Iterator[ServerConnection]:
    """A connection to Prefect's server, which answers: it has just begun this flow run."""
    with closing(ServerConnection(run_logger().warning)) as server:
        server.wait_for_answer()
        yield server


def is_crash_loop(states: Iterable[State], newest: datetime | None) -> bool:
    """Whether the last MAX_CRASHES runs of a flow run crashed, and the newest checkpoint is older.

    `states` are all of the flow run's, which is running; `newest` is when the newest checkpoint
    was made, None if there is none. The clocks of Prefect's server and of the workers are compared.
    """
    begun = []
    for state in sorted(states, key=lambda one: one.timestamp):
        if state.is_running():
            begun.append(state.timestamp)
        elif state.is_final() and not state.is_crashed():
            begun.clear()
    crashed = begun[:-1][-MAX_CRASHES:]
    return len(crashed) == MAX_CRASHES and (newest is None or newest < crashed[0])
