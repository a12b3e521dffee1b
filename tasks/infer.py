"""The infer task: scores data with a checkpoint."""

from __future__ import annotations

from prefect import runtime, task

from evertrain_tasks.driver_session.session import session_of
from evertrain_tasks.retries import OPTIONS, cancelled_if_stopped
from train_core.requests import Request
from train_core.results import CheckpointSummary, PredictionsResult
from train_core.text.shown_text import shown

_MOST_CHARS = 300


def _name() -> str:
    """What is scored, an address without its login, and with which checkpoint."""
    asked = runtime.task_run.parameters
    return f"infer {shown(asked['source'], _MOST_CHARS)} with {asked['checkpoint'].name}"


@task(name="infer", task_run_name=_name, **OPTIONS)
@cancelled_if_stopped
def infer(request: Request, checkpoint: CheckpointSummary, source: str) -> PredictionsResult:
    """The predictions for `source`, a split's name or the address of data."""
    with session_of(request).running("infer") as driver:
        return driver.infer(checkpoint, source)
