"""The train task: runs the training, and shows where it is in Prefect's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect import task
from prefect.client.schemas.actions import ArtifactUpdate

from evertrain_tasks.driver_session.session import Session, session_of
from evertrain_tasks.driver_session.session_log import run_logger
from evertrain_tasks.driver_session.ticker import Ticker
from evertrain_tasks.report.artifacts import creator, new_artifact
from evertrain_tasks.retries import OPTIONS, cancelled_if_stopped
from evertrain_tasks.timing import TIMING
from train_core.client.live import LiveReader
from train_core.requests import DriverRequest
from train_core.results import TrainResult
from train_core.storage.run_folder import RunFolder
from train_core.text.shown_text import shown

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient


@task(name="train", task_run_name="train {request.run}", **OPTIONS)
@cancelled_if_stopped
def train(request: DriverRequest) -> TrainResult:
    """Train to the end, from the newest good checkpoint if the run has one."""
    session = session_of(request)
    with session.running("train") as driver:
        progress = _Progress(session)
        with Ticker(progress.tick, TIMING.progress_interval_s):
            result = driver.train()
        progress.show(100.0)
        return result


class _Progress:
    """The progress artifact and the log lines of one training."""

    def __init__(self, session: Session) -> None:
        run = session.request.run
        self._server = session.server
        self._reader = LiveReader(RunFolder(session.request.storage, run))
        self._log = run_logger()
        new = new_artifact("progress", "progress", 0.0, f"Training of {run}")
        self._create = creator(session, new) if new else None
        self._stored: UUID | None = None
        self._percent = 0.0
        self.show(0.0)

    def tick(self) -> None:
        live = self._reader.read()
        if live:
            self._log.info("%s", shown(str(live)))
            self.show(live.percent)

    def show(self, percent: float) -> None:
        """Show how much of the training is done."""
        self._percent = percent
        if self._server and self._create:
            self._server.show("progress", self._send)

    def _send(self, client: SyncPrefectClient) -> None:
        assert self._create is not None
        if self._stored is None:
            self._stored = self._create(client).id
        client.update_artifact(self._stored, ArtifactUpdate(data=self._percent))
