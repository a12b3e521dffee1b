"""The train task: runs the training, and shows where it is in Prefect's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from tasks.artifacts import best_effort, create_artifact
from tasks.live import LiveReader, Ticker
from tasks.retries import OPTIONS
from tasks.session import session_of
from train_core.driver import DriverRequest
from train_core.results import TrainResult
from train_core.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from uuid import UUID

PROGRESS_EVERY_S = 5.0


@task(name="train", task_run_name="train {request.run}", **OPTIONS)
def train(request: DriverRequest) -> TrainResult:
    """Train to the end, from the newest good checkpoint if the run has one."""
    with session_of(request).running("train") as driver:
        progress = _Progress(request)
        with Ticker(progress.tick, PROGRESS_EVERY_S):
            result = driver.train()
        progress.finish()
        return result


class _Progress:
    """The progress artifact and the log lines of one training."""

    def __init__(self, request: DriverRequest) -> None:
        self._reader = LiveReader(RunFolder(request.storage, request.run))
        self._log = get_run_logger()
        # Prefect's functions are coroutines too where a loop runs; in a task none does.
        self._artifact = cast(
            "UUID | None",
            best_effort(
                create_artifact,
                create_progress_artifact,
                "progress",
                request,
                progress=0.0,
                description=f"Training of {request.run}",
            ),
        )

    def tick(self) -> None:
        live = self._reader.read()
        if live:
            self._log.info("%s", live)
            self._update(live.percent)

    def finish(self) -> None:
        self._update(100.0)

    def _update(self, percent: float) -> None:
        if self._artifact:
            best_effort(update_progress_artifact, self._artifact, progress=percent)
