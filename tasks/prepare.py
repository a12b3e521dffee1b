"""The prepare task: the checks before any compute, and a training's lease."""

from __future__ import annotations

from prefect import task

from evertrain_tasks.driver_session.session import session_of
from evertrain_tasks.retries import OPTIONS, cancelled_if_stopped
from train_core.requests import Prepared, Request


@task(name="prepare", task_run_name="prepare {request.run}", **OPTIONS)
@cancelled_if_stopped
def prepare(request: Request) -> Prepared:
    """Check the request; for a training, create a new run and acquire its lease."""
    return session_of(request).prepared()
