"""Flow runs that are suspended until a person has answered follow an answer that a command gave.

They are resumed: a worker runs the flow again, which finds the answer in the model's log. The
command `evertrain approve` does that; if it does not reach Prefect's server, the next flow run
there does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus

from evertrain_flows.flow_runs.approval import SEE_RUN_FOLDER
from train_core.champion.of_run import question_of
from train_core.errors import EvertrainError
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_RETRAIN = "retrain"
_log = logging.getLogger(__name__)


def resume_answered(client: SyncPrefectClient, storage: str, run: str = "") -> list[str]:
    """Resume the suspended flow runs of a storage whose runs have an answer; return their names.

    With `run` only that run's. Whether a flow run is of that storage is not always known here: one
    of another storage finds no answer there, and asks again.
    """
    paused = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED]))
    name = FlowRunFilterName(any_=[run]) if run else None
    flow = FlowFilter(name=FlowFilterName(any_=[_RETRAIN]))
    shown = client.read_flow_runs(
        flow_filter=flow, flow_run_filter=FlowRunFilter(state=paused, name=name)
    )
    followed = []
    for one in shown:
        if _has_answer(one, storage):
            # What the form would have said: the flow looks for the answer in the model's log first.
            answer = client.resume_flow_run(one.id, run_input=SEE_RUN_FOLDER)
            if answer.status == SetStateStatus.ACCEPT:
                followed.append(one.name)
    return followed


def _has_answer(flow_run: FlowRun, storage: str) -> bool:
    """Whether the flow run's run has an answer in the storage, which may be its own.

    It names that storage, or none: its worker's default.
    """
    given = flow_run.parameters.get("parameters")
    # Another flow may have the same name, and other parameters.
    named = given.get("storage") if isinstance(given, dict) else None
    try:
        if named and Store(named).url != Store(storage).url:
            return False
        question = question_of(RunFolder(storage, flow_run.name))
    except (EvertrainError, ValueError) as error:
        # The storage that it names may be unknown here. It hides no other flow run.
        _log.warning("whether run %r has an answer is not known: %s", flow_run.name, error)
        return False
    return question is not None and question.is_answered
