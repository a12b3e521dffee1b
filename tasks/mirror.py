"""The mirror task: brings MLflow up to date with a run that no process drives."""

from __future__ import annotations

from prefect import task

from evertrain_tasks.retries import OPTIONS
from train_core.client.isolated import mirror_run
from train_core.results import Tracking
from train_core.storage.run_folder import RunFolder


@task(name="mirror", task_run_name="mirror {run}", **OPTIONS)
def mirror(storage: str, run: str, tracking_uri: str) -> Tracking:
    """Send MLflow what it lacks of the run, and give the address of its page."""
    return mirror_run(RunFolder(storage, run), tracking_uri)
