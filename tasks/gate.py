"""The gate task: compares the best checkpoint with the champion, and decides."""

from __future__ import annotations

from prefect import task

from evertrain_tasks.driver_session.session import session_of
from evertrain_tasks.retries import OPTIONS, cancelled_if_stopped
from train_core.requests import DriverRequest
from train_core.results import CheckpointSummary, GateResult


@task(name="gate", task_run_name="gate {request.run}", **OPTIONS)
@cancelled_if_stopped
def gate(request: DriverRequest, best: CheckpointSummary) -> GateResult:
    """Register the checkpoint as a version of its model, and decide what becomes of it."""
    with session_of(request).running("gate") as driver:
        return driver.gate(best)
