"""A bound for what an automation runs again: Prefect's has none of its own."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from prefect import get_client, get_run_logger, runtime

from train_core.driver import DriverRequest
from train_core.errors import GaveUpError
from train_core.storage.run_folder import RunFolder

MAX_FRUITLESS_RUNS = 5
"""How often in a row a flow run may be run without a new checkpoint."""


def refuse_endless(request: DriverRequest) -> None:
    """Raise GaveUpError if the flow run was run so often in vain that it would be for ever.

    A failed flow run is run again by no automation; one of the command line never was.
    """
    # The run that goes on now is counted, too.
    if not runtime.deployment.id or runtime.flow_run.run_count <= MAX_FRUITLESS_RUNS:
        return
    try:
        is_endless, step = _is_fruitless(request)
    except Exception as error:  # noqa: BLE001 (whatever the API's client and a storage raise)
        get_run_logger().warning("whether earlier runs came to anything is not known: %s", error)
        return
    if is_endless:
        raise GaveUpError(
            "prepare",
            f"this flow run died {MAX_FRUITLESS_RUNS} times in a row without a new checkpoint, the "
            f"newest is of step {step}: look for why, then go on with run {request.run!r} in a new "
            "flow run that is given its name",
        )


def _is_fruitless(request: DriverRequest) -> tuple[bool, int]:
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
