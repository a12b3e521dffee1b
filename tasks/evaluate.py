"""The evaluate task: measures checkpoints on a split."""

from __future__ import annotations

from prefect import task

from evertrain_tasks.driver_session.session import session_of
from evertrain_tasks.retries import OPTIONS, cancelled_if_stopped
from train_core.requests import DriverRequest
from train_core.results import CheckpointSummary, EvaluationResult


@task(name="evaluate", task_run_name="evaluate {request.run} on {split}", **OPTIONS)
@cancelled_if_stopped
def evaluate(
    request: DriverRequest, checkpoints: list[CheckpointSummary], split: str
) -> list[EvaluationResult]:
    """The checkpoints' metrics on the split, in the order given."""
    with session_of(request).running(f"evaluate {split}") as driver:
        return driver.evaluate(checkpoints, split)
