"""The task of each stage: it asks the driver of its flow's session, and shows what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.client.schemas.actions import ArtifactUpdate

from evertrain_tasks.driver_session.session import Session, session_of
from evertrain_tasks.driver_session.session_log import run_logger
from evertrain_tasks.driver_session.ticker import Ticker
from evertrain_tasks.report.artifacts import creator, new_artifact, show_report
from evertrain_tasks.retries import OPTIONS, cancelled_if_stopped
from evertrain_tasks.timing import TIMING
from train_core.client.live import LiveReader
from train_core.requests import Request
from train_core.results import GateResult, Report
from train_core.stages import PROMOTE, PUBLISH, TRAIN, ArgumentsT, ResultT, Stage
from train_core.storage.run_folder import RunFolder
from train_core.text.shown_text import shown

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.tasks import Task

_tasks: dict[str, Task[..., Any]] = {}


def task_of(stage: Stage[ArgumentsT, ResultT]) -> Task[[Request, ArgumentsT], ResultT]:
    """Prefect's task of a stage, which is called with the request of a session that is open."""
    found = _tasks.get(stage.name)
    if found is None:
        found = _tasks[stage.name] = _new_task(stage)
    return found


def _new_task(stage: Stage[ArgumentsT, ResultT]) -> Task[[Request, ArgumentsT], ResultT]:
    def run(request: Request, arguments: ArgumentsT) -> ResultT:
        session = session_of(request)
        meanwhile = _MEANWHILE.get(stage.name, _nothing)
        with session.running(stage.label_of(arguments)) as driver, meanwhile(session):
            result = driver.ask(stage, arguments)
        if stage.name in _AFTERWARDS:
            _AFTERWARDS[stage.name](session, result)
        return result

    # Prefect's keys of tasks have it.
    run.__name__ = run.__qualname__ = stage.name
    return task(name=stage.name, task_run_name=stage.title, **OPTIONS)(cancelled_if_stopped(run))


def _nothing(_session: Session) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _showing_progress(session: Session) -> Iterator[None]:
    """Show where a training is while it runs, and that it is done."""
    progress = _Progress(session)
    with Ticker(progress.tick, TIMING.progress_interval_s):
        yield
    progress.show(100.0)


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


def _log_outcome(session: Session, promoted: GateResult) -> None:
    session.log.add(promoted.summary)


def _show_report(session: Session, report: Report) -> None:
    show_report(report, session)


_MEANWHILE: dict[str, Callable[[Session], AbstractContextManager[None]]] = {
    TRAIN.name: _showing_progress
}
"""What a task does while the driver carries out its stage."""
_AFTERWARDS: dict[str, Callable[[Session, Any], None]] = {
    PROMOTE.name: _log_outcome,
    PUBLISH.name: _show_report,
}
"""What a task does with its stage's result."""
