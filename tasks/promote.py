"""The promote task: makes the challenger champion, if that was decided or is approved."""

from __future__ import annotations

from prefect import task

from evertrain_tasks.driver_session.session import session_of
from evertrain_tasks.retries import OPTIONS, cancelled_if_stopped
from train_core.requests import DriverRequest
from train_core.results import Approval, GateResult


@task(name="promote", task_run_name="promote {request.run}", **OPTIONS)
@cancelled_if_stopped
def promote(
    request: DriverRequest, result: GateResult, approval: Approval | None = None
) -> GateResult:
    """Move the champion, or leave it; the outcome, which is another one if it was overtaken."""
    with session_of(request).running("promote") as driver:
        promoted = driver.promote(result, approval)
    session_of(request).log.add(promoted.summary)
    return promoted
