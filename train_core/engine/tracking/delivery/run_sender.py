"""The sender of the mirror: commits, samples of the machine's load, and tasks of the stages.

`engine/tracking/__init__.py` lists the whole way of a metric.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from train_core.engine.tracking.client_settings import REPEATED_BY_CALLER
from train_core.errors import TrackingError
from train_core.policy.end_status import EndStatus
from train_core.policy.logins import public_uri, without_login_of
from train_core.policy.mlflow_pages import run_page
from train_core.quick_imports import garbage_collection_paused
from train_core.results import CheckpointSummary, GateResult, Tracking
from train_core.storage.records.names import CHECKPOINTS, CheckpointName
from train_core.storage.run_folder import RunFolder

# Loading MLflow takes seconds: it is imported in the delivery's thread, while Ray starts.
if TYPE_CHECKING:
    from train_core.config import TrainConfig
    from train_core.engine.tracking.description.note import Outcome
    from train_core.engine.tracking.mlflow_runs import MlflowRuns
    from train_core.engine.tracking.refusals import Refusals
    from train_core.engine.tracking.system import SystemMetrics

MAX_SAMPLES = 1000
_log = logging.getLogger(__name__)

Task = Callable[["MlflowRuns"], None]


class RunSender:
    """Sends MLflow what it does not have of one run. Other threads may use `tasks` only."""

    def __init__(
        self,
        folder: RunFolder,
        tracking_uri: str,
        experiment: str,
        *,
        is_live: bool,
        job_url: str,
        sample_s: float,
    ) -> None:
        self.refusal: TrackingError | None = None
        """Why the server refused the first request, if it did."""
        self.tracking = Tracking()
        """Where MLflow shows the run, as far as is known."""
        self.tasks = Tasks()
        self.refusals: Refusals | None = None
        """What MLflow refused, once it was asked for anything."""
        self._folder = folder
        self._uri = tracking_uri
        self._experiment = experiment
        self._is_live = is_live
        self._job_url = job_url
        self._commits = Commits(folder)
        self._samples = SystemSamples(sample_s)
        self._runs: MlflowRuns | None = None
        self._outcome: Outcome | None = None
        """What the pipeline ended with, once it is known."""

    def connect(self) -> None:
        """Load MLflow, and ask the server whether it refuses."""
        REPEATED_BY_CALLER.apply()
        with garbage_collection_paused():
            from train_core.engine.tracking.mlflow_server import contact

        try:
            contact(self._uri, self._experiment)
        except TrackingError as error:
            self.refusal = error
        except Exception as error:  # noqa: BLE001 (the client raises what its transport raises)
            described = self.describe(error)
            _log.warning("MLflow does not answer, and is tried again later: %s", described)

    def poll(self) -> None:
        """Measure the machine's load while the run is trained here."""
        if self._is_live and not self._commits.is_complete:
            self._samples.measure()

    def deliver(self) -> None:
        """Send commits, samples and tasks, in this order."""
        with self._opened_runs() as runs:
            self._commits.send(runs)
            if self._commits.is_complete:
                self._samples.clear()
            self._samples.send(runs)
            self.tasks.send(runs)

    def end(self, status: EndStatus, why: str = "") -> None:
        """End the MLflow runs; `why` says why the run has failed.

        Deliver nothing afterwards: it would show them as running.
        """
        with self._opened_runs() as runs:
            runs.end(status, why)

    def describe(self, error: Exception) -> str:
        """The error's message without the login that the server's address has."""
        return without_login_of(str(error), self._uri)

    def show_outcome(
        self,
        runs: MlflowRuns,
        best: CheckpointSummary,
        test_metrics: dict[str, float | None],
        decision: str,
        flow_run: str,
    ) -> None:
        """Show the outcome on the parent run, and tell it in every later description."""
        from train_core.engine.tracking.description.note import Outcome
        from train_core.engine.tracking.show_stages import show_outcome

        self._outcome = Outcome(best, test_metrics, decision, flow_run)
        show_outcome(runs, self._outcome)

    def log_models(
        self, runs: MlflowRuns, best: CheckpointSummary, config: TrainConfig | None
    ) -> None:
        """Complete the models of the kept checkpoints, and note the address of the best one's.

        Only a predictor knows what is in a folder that a training function reported: without one, a
        model refers to it.
        """
        from train_core.engine.tracking.models.kept import log_measured, sync_models
        from train_core.engine.tracking.models.logged import copy_kept_models

        checkpoints = runs.folder.checkpoints()
        with runs.refusals.passing("the models of the checkpoints"):
            sync_models(runs, checkpoints, is_finished=True)
            log_measured(runs, checkpoints)
        if runs.folder.newest_request().config.has_workload:
            uri = copy_kept_models(runs, best, config)
            self.tracking = self.tracking.model_copy(update={"model_uri": uri})

    def log_gate(self, runs: MlflowRuns, result: GateResult) -> None:
        """Show what a gate decided, in the run and on the registered model."""
        from train_core.engine.tracking.models.registered import show_gate

        show_gate(runs, result)

    @contextmanager
    def _opened_runs(self) -> Iterator[MlflowRuns]:
        try:
            is_open = self._runs is not None
            if self._runs is None:
                self._runs = self._open_runs()
            self._runs.refusals.are_ids_new = not is_open
            yield self._runs
        except Exception:
            # The next attempt asks for all ids again: the runs may have been deleted meanwhile.
            self._runs = None
            raise

    def _open_runs(self) -> MlflowRuns:
        from train_core.engine.tracking.mlflow_runs import MlflowRuns
        from train_core.engine.tracking.refusals import Refusals

        self.refusals = self.refusals or Refusals(self.describe)
        self.refusals.are_ids_new = True
        runs = MlflowRuns(
            self._folder,
            self._uri,
            self._experiment,
            is_live=self._is_live,
            job_url=self._job_url,
            outcome=self._outcome,
            refusals=self.refusals,
        )
        uri, run_id = public_uri(self._uri).rstrip("/"), runs.run_id("pipeline")
        page = run_page(uri, runs.experiment_id, run_id)
        self.tracking = Tracking(
            tracking_uri=uri,
            experiment_id=runs.experiment_id,
            run_id=run_id,
            url=page if uri.startswith("http") else "",
            model_uri=self.tracking.model_uri,
        )
        self._commits.forget_sent()
        return runs


class Commits:
    """The checkpoints that the training commits, with the journal that each covers."""

    def __init__(self, folder: RunFolder) -> None:
        self.is_complete = False
        """Whether the training's last checkpoint was sent."""
        self._folder = folder
        self._sent: set[str] | None = None
        """The names of the commits that were sent; None: nothing was compared with MLflow yet."""

    def forget_sent(self) -> None:
        """Compare all commits with MLflow when they are sent next."""
        self._sent = None

    def send(self, runs: MlflowRuns) -> None:
        """Send the entries that MLflow does not have, if there is a new commit."""
        from train_core.engine.tracking.show_stages import show_training

        committed = self._committed_names()
        if self._sent is None or not committed <= self._sent:
            self.is_complete = show_training(runs)
            self._sent = committed

    def _committed_names(self) -> set[str]:
        """The names that look committed. The requests are cheap: they are made at every poll."""
        parsed = map(CheckpointName.parse, self._folder.store.names(CHECKPOINTS))
        sent = self._sent or set()
        return {
            str(name)
            for name in parsed
            if name and (str(name) in sent or self._folder.exists_checkpoint(name))
        }


class SystemSamples:
    """Samples of the machine's load; in a long outage only the newest are kept."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_at = 0.0
        self._metrics: SystemMetrics | None = None
        self._samples: deque[tuple[float, dict[str, float]]] = deque(maxlen=MAX_SAMPLES)

    def measure(self) -> None:
        """Take a sample if it is time to."""
        if time.monotonic() < self._next_at:
            return
        from train_core.engine.tracking.system import SystemMetrics

        self._next_at = time.monotonic() + self._every_s
        try:
            self._metrics = self._metrics or SystemMetrics()
            self._samples.append((time.time(), self._metrics.sample()))
        except Exception as error:  # noqa: BLE001 (a machine may hide what is to be measured)
            _log.debug("the machine's load cannot be measured: %s", error)

    def clear(self) -> None:
        """Drop the samples that were not sent."""
        self._samples.clear()

    def send(self, runs: MlflowRuns) -> None:
        """Send the samples, oldest first."""
        while self._samples:
            time_s, values = self._samples[0]
            runs.log_system_metrics(values, time_s)
            self._samples.popleft()


class Tasks:
    """The calls by which stages log, in their order; any thread may add one."""

    def __init__(self) -> None:
        self._pending: deque[Task] = deque()

    def add(self, task: Task) -> None:
        """Call `task` after all that were added before."""
        self._pending.append(task)

    def send(self, runs: MlflowRuns) -> None:
        """Call the tasks. One that cannot be shown is left out; in an outage all are kept."""
        while self._pending:
            # It would fail again and keep the later tasks waiting.
            with runs.refusals.passing("a result"):
                self._pending[0](runs)
            self._pending.popleft()
