"""What becomes of flow runs whose process died.

An automation runs a deployment's again, but not for ever. One of a command line, which nobody runs
again, is told to have crashed when its run goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from prefect import State, get_client, get_run_logger, runtime
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event
from prefect.states import Crashed

from train_core.config import LOCAL
from train_core.driver import DriverRequest
from train_core.errands import mirror_run
from train_core.errors import EvertrainError, GaveUpError, RunBusyError
from train_core.storage import lease
from train_core.storage.run_folder import RunFolder
from train_core.storage.store import Store

MAX_DEATHS = 5
"""How often in a row a flow run may die without a new checkpoint."""


def refuse_endless(request: DriverRequest) -> None:
    """Raise GaveUpError if the flow run died so often in vain that it would be for ever.

    An automation runs again what crashed, without a bound; what failed it leaves alone.
    """
    folder = RunFolder(request.storage, request.run)
    try:
        if not _died_too_often(folder):
            return
        if folder.exists():
            held = lease.acquire(folder.store, folder.name)
            held.end = "FAILED"
            held.release()
    except RunBusyError:
        # Only flows died; the job on the cluster works.
        return
    except Exception as error:  # noqa: BLE001 (whatever the API's client and a storage raise)
        get_run_logger().warning("whether earlier runs came to anything is not known: %s", error)
        return
    if request.tracking_uri and folder.exists():
        # No driver begins that would tell MLflow so.
        try:
            mirror_run(folder, request.tracking_uri)
        except EvertrainError as error:
            get_run_logger().warning("MLflow may show the run as running: %s", error)
    raise GaveUpError(
        "prepare",
        f"this flow run died {MAX_DEATHS} times in a row without a new checkpoint: look for "
        f"why, then retry it, or go on with run {request.run!r} in a new flow run of that name",
    )


def announce_schedule() -> None:
    """Send the event of a scheduled flow run's first state, which Prefect's scheduler leaves out.

    Automations see the events of a flow run in their order, and wait 15 minutes for one that is
    missing. So late, a flow run that a schedule made less than five minutes before it began would
    be run again when it died.
    """
    try:
        flow_run_id = UUID(str(runtime.flow_run.id))
        with get_client(sync_client=True) as client:
            flow_run = client.read_flow_run(flow_run_id)
            if not flow_run.auto_scheduled or flow_run.run_count > 1:
                return
            states = client.read_flow_run_states(flow_run_id)
        first = min(states, key=lambda one: one.timestamp)
        # The id of a state is that of its event.
        emit_event(
            f"prefect.flow-run.{first.name}",
            resource={
                "prefect.resource.id": f"prefect.flow-run.{flow_run_id}",
                "prefect.resource.name": flow_run.name,
            },
            occurred=first.timestamp,
            id=first.id,
        )
    except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
        get_run_logger().warning("an automation may act late, should this run die: %s", error)


def crash_left_running(request: DriverRequest) -> None:
    """Crash the flow runs of a command line that drove this run with their own Ray, and died.

    To be called by who has the run's lease: the driver of no other has it now. On a cluster another
    flow may live that is attached to the job; a deployment's are the automations'.
    """
    asked = FlowRunFilter(
        name=FlowRunFilterName(any_=[request.run]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])),
        deployment_id=FlowRunFilterDeploymentId(is_null_=True),
    )
    flow = FlowFilter(name=FlowFilterName(any_=[str(runtime.flow_run.flow_name)]))
    own = UUID(str(runtime.flow_run.id))
    message = "Another flow run goes on with the run."
    try:
        with get_client(sync_client=True) as client:
            for found in client.read_flow_runs(flow_filter=flow, flow_run_filter=asked):
                if found.id != own and drove_with_its_own_ray(found.parameters, request):
                    client.set_flow_run_state(found.id, Crashed(message=message))
    except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
        get_run_logger().warning(
            "whether a flow run that died is still shown as running is not known: %s", error
        )


def drove_with_its_own_ray(parameters: dict[str, Any], request: DriverRequest) -> bool:
    """Whether a flow run with these parameters drove the run that is asked for, with its own Ray.

    A run of that name in a folder of that path on another machine is taken for this one.
    """
    asked = parameters.get("parameters", {})
    if asked.get("ray_address", LOCAL) != LOCAL or "storage" not in asked:
        return False
    try:
        return Store(asked["storage"]).url == Store(request.storage).url
    except EvertrainError:
        # A storage that is unknown here.
        return False


def _died_too_often(folder: RunFolder) -> bool:
    # The run that goes on now is counted, too.
    if not runtime.deployment.id or runtime.flow_run.run_count <= MAX_DEATHS:
        return False
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(UUID(str(runtime.flow_run.id)))
    checkpoints = folder.checkpoints()
    newest = datetime.fromisoformat(checkpoints[-1].manifest.created_at) if checkpoints else None
    return is_in_vain(states, newest)


def is_in_vain(states: Iterable[State], newest: datetime | None) -> bool:
    """Whether the last MAX_DEATHS runs of a flow run died, and the newest checkpoint is older.

    `states` are all of the flow run's, which is running; `newest` is when the newest checkpoint
    was made, None if there is none. The clocks of Prefect's server and of the workers are compared.
    """
    begun = []
    for state in sorted(states, key=lambda one: one.timestamp):
        if state.is_running():
            begun.append(state.timestamp)
        elif state.is_final() and not state.is_crashed():
            begun.clear()
    died = begun[:-1][-MAX_DEATHS:]
    return len(died) == MAX_DEATHS and (newest is None or newest < died[0])
