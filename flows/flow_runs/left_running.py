"""Flow runs that Prefect shows as running though no process drives them any more.

Their process died, or Prefect's server was away when they ended. The run's lease has its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect import State, runtime
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelled, Completed, Crashed, Failed

from evertrain_flows.defaults import default_storage
from evertrain_flows.flow_runs.states import gate_name
from train_core.config import LOCAL
from train_core.errors import EvertrainError
from train_core.policy.end_status import EndStatus
from train_core.requests import Request
from train_core.storage.coordination import lease
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import read_report

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_STATES: dict[str, Callable[..., State[Any]]] = {
    EndStatus.KILLED: Cancelled,
    EndStatus.FAILED: Failed,
}
_WENT_ON = "Another flow run goes on with the run."
_DIED = "Its process died: nobody drives the run."
_ENDED_UNREPORTED = "Prefect's server was away when the run ended; its folder says how."


def left_running(client: SyncPrefectClient, request: Request) -> list[FlowRun]:
    """The other flow runs of this flow that Prefect shows as running though no process drives them.

    The caller must have the lease of the run that `request` names.
    """
    running = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING]))
    flow = FlowFilter(name=FlowFilterName(any_=[str(runtime.flow_run.flow_name)]))
    own = UUID(str(runtime.flow_run.id))
    shown = client.read_flow_runs(flow_filter=flow, flow_run_filter=FlowRunFilter(state=running))
    return [one for one in shown if one.id != own and true_state(one, request) is not None]


def correct_states(
    client: SyncPrefectClient, flow_runs: Iterable[FlowRun], request: Request
) -> None:
    """Give flow runs that no process drives their true state.

    Call it a while after `left_running`: a flow run that was just beginning is driven by now, and
    one that was just ending has ended by itself.
    """
    for one in flow_runs:
        current = client.read_flow_run(one.id).state
        state = true_state(one, request)
        if state is not None and current is not None and current.is_running():
            client.set_flow_run_state(one.id, state, force=True)


def true_state(flow_run: FlowRun, request: Request) -> State[Any] | None:
    """The state that a flow run should have; None if a process drives its run or may do so.

    A run of that name in a folder of that path on another machine is taken for this one.
    """
    parameters = flow_run.parameters.get("parameters", {})
    try:
        folder = folder_of(flow_run)
        if Store(folder.storage).url != Store(request.storage).url:
            return None
        is_own = flow_run.name == request.run
        if not is_own and lease.holder_of(folder.store) is not None:
            return None
        # The attempt before the one that this process has.
        attempt = lease.newest_attempt(folder.store) - is_own
        end = lease.end_of(folder.store, attempt) if attempt > 0 else ""
    except EvertrainError:
        # The storage is unknown here, or is away.
        return None
    is_deployed = flow_run.deployment_id is not None
    is_elsewhere = parameters.get("ray_address", LOCAL) != LOCAL
    if (is_own and is_elsewhere) or (is_deployed and end != EndStatus.FINISHED):
        # Another flow may live that is attached to the job; or the automations run it again, and
        # it may be about to take its run.
        return None
    if end:
        return ended_state(folder, end)
    if is_elsewhere or not folder.exists():
        return None
    return Crashed(message=_WENT_ON if is_own else _DIED)


def folder_of(flow_run: FlowRun) -> RunFolder:
    """The run folder of a flow run of `retrain`, in the storage that it, or this process, names."""
    parameters = flow_run.parameters.get("parameters", {})
    return RunFolder(parameters.get("storage") or default_storage(), flow_run.name)


def ended_state(folder: RunFolder, end: str) -> State[Any] | None:
    """The state of a flow run whose run has that end; None if it has none.

    It has the name that the flow would have given it, if the report says what the gate did.
    """
    if end == EndStatus.FINISHED:
        return _finished(folder)
    return _STATES[end](message=_ENDED_UNREPORTED) if end in _STATES else None


def _finished(folder: RunFolder) -> State[Any]:
    try:
        report = read_report(folder)
    except EvertrainError:
        # It is damaged, or away: Prefect is told no less than that the run has ended.
        report = None
    gate = report.gate if report else None
    told = f"{gate.summary}. {_ENDED_UNREPORTED}" if gate else _ENDED_UNREPORTED
    return Completed(name=gate_name(gate), message=told)
