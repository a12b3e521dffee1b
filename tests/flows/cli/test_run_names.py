"""What a flow run's run is called: from what Prefect says of it once and never changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import AwaitingRetry, Crashed, Running, Scheduled

from benchmarks.services import free_port
from evertrain_flows.parameters import RetrainParameters
from evertrain_flows.retrain import run_name

AT = datetime(2026, 11, 23, 3, tzinfo=UTC)
FIRST = FlowRun(
    id=UUID("06a1e52e-6f1e-7d63-8000-9a2c4d01a206"),
    flow_id=UUID(int=1),
    name="amber-lion",
    expected_start_time=AT,
    next_scheduled_start_time=AT,
    state=Scheduled(scheduled_time=AT),
    run_count=0,
)
LATER = AT + timedelta(hours=7)
AGAIN = [
    FIRST.model_copy(update={"state": Running(), "start_time": LATER, "run_count": 1}),
    FIRST.model_copy(update={"name": "clinic-20261123-030000-01a206", "state": Crashed()}),
    FIRST.model_copy(
        update={
            "state": AwaitingRetry(scheduled_time=LATER),
            "next_scheduled_start_time": LATER,
            "start_time": AT,
            "run_count": 4,
        }
    ),
]


def name_of(flow_run: FlowRun, **parameters: object) -> str:
    asked = RetrainParameters.model_validate({"workload": "clinic:Clinic"} | parameters)
    context = FlowRunContext.model_construct(flow_run=flow_run, parameters={"parameters": asked})
    with context:
        return run_name()


@pytest.mark.promise("flow-run-names")
@pytest.mark.parametrize("flow_run", [FIRST, *AGAIN])
def test_a_flow_runs_run_has_one_name_also_when_it_is_run_again_and_the_api_is_away(
    flow_run: FlowRun,
) -> None:
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}):
        assert name_of(flow_run) == "clinic-20261123-030000-01a206"


def test_the_name_that_was_asked_for_is_taken() -> None:
    assert name_of(FIRST, run="mine") == "mine"
