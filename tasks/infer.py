"""The infer task: scores data with a checkpoint."""

from __future__ import annotations

from prefect import task

from tasks.retries import OPTIONS, cancelled_if_stopped
from tasks.session import session_of
from train_core.requests import Request
from train_core.results import CheckpointSummary, PredictionsResult


@task(name="infer", task_run_name="infer {source} with {checkpoint.name}", **OPTIONS)
@cancelled_if_stopped
def infer(request: Request, checkpoint: CheckpointSummary, source: str) -> PredictionsResult:
    """The predictions for `source`, a split's name or the address of data."""
    with session_of(request).running("infer") as driver:
        return driver.infer(checkpoint, source)
