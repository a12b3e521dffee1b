"""What becomes of flow runs whose process died.

An automation runs a deployment's again, but not for ever. One of a command line, which nobody runs
again, is told to have crashed when its run goes on.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from prefect import get_client, get_run_logger, runtime
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed

from train_core.config import LOCAL
from train_core.driver import DriverRequest
from train_core.errors import GaveUpError
from train_core.storage.run_folder import RunFolder

MAX_FRUITLESS_RUNS = 5
"""How often in a row a flow run may be run without a new checkpoint."""


def refuse_endless(request: DriverRequest) -> None:
    """Raise GaveUpError if the flow run was run so often in vain that it would be for ever.

    An automation runs again what crashed, without a bound; what failed it leaves alone.
    """
    # The run that goes on now is counted, too.
    if not runtime.deployment.id or runtime.flow_run.run_count <= MAX_FRUITLESS_RUNS:
        return
    try:
        is_fruitless, step = _progress(request)
    except Exception as error:  # noqa: BLE001 (whatever the API's client and a storage raise)
        get_run_logger().warning("whether earlier runs came to anything is not known: %s", error)
        return
    if is_fruitless:
        raise GaveUpError(
            "prepare",
            f"this flow run died {MAX_FRUITLESS_RUNS} times in a row without a new checkpoint, the "
            f"newest is of step {step}: look for why, then go on with run {request.run!r} in a new "
            "flow run that is given its name",
        )


def crash_left_running(request: DriverRequest) -> None:
    """Crash the flow runs of a command line that drove this run and died.

    To be called by who drives it now: there can be no other. On a cluster there can, as a second
    flow attaches to the job; a deployment's are the automation's.
    """
    if request.config.ray_address != LOCAL:
        return
    asked = FlowRunFilter(
        name=FlowRunFilterName(any_=[request.run]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])),
        deployment_id=FlowRunFilterDeploymentId(is_null_=True),
    )
    message = "Its process died; another flow run goes on with the run."
    try:
        with get_client(sync_client=True) as client:
            for found in client.read_flow_runs(flow_run_filter=asked):
                is_other = str(found.id) != str(runtime.flow_run.id)
                # Another storage may have a run of that name, which lives.
                storage = found.parameters.get("parameters", {}).get("storage")
                if is_other and storage == request.storage:
                    client.set_flow_run_state(found.id, Crashed(message=message))
    except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
        get_run_logger().warning("a flow run that died is still shown as running: %s", error)


def _progress(request: DriverRequest) -> tuple[bool, int]:
    """Whether the newest checkpoint is older than the last runs, and its step."""
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(UUID(str(runtime.flow_run.id)))
    begun = sorted(state.timestamp for state in states if state.is_running())
    first = begun[-1 - MAX_FRUITLESS_RUNS]
    checkpoints = RunFolder(request.storage, request.run).checkpoints()
    if not checkpoints:
        return True, 0
    newest = checkpoints[-1].manifest
    return datetime.fromisoformat(newest.created_at) < first, newest.step
