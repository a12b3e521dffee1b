"""The sender of the mirror: what the run folder has committed, and samples of the machine's load.

`engine/tracking/__init__.py` lists the whole way of a metric.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from train_core.engine.tracking.client_settings import REPEATED_BY_CALLER
from train_core.errors import TrackingError
from train_core.policy.end_status import EndStatus
from train_core.policy.logins import public_uri, without_login_of
from train_core.policy.mlflow_pages import run_page
from train_core.quick_imports import garbage_collection_paused
from train_core.results import Tracking
from train_core.storage.run_folder import RunFolder

# Loading MLflow takes seconds: it is imported in the delivery's thread, while Ray starts.
if TYPE_CHECKING:
    from train_core.config import TrainConfig
    from train_core.engine.tracking.follow import Follower
    from train_core.engine.tracking.mlflow_runs import MlflowRuns
    from train_core.engine.tracking.refusals import Refusals
    from train_core.engine.tracking.system import SystemMetrics

MAX_SAMPLES = 1000
_log = logging.getLogger(__name__)


class RunSender:
    """Sends MLflow what it does not have of one run.

    Other threads may use `config`, `running` and `look_again` only.
    """

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
        self.config: TrainConfig | None = None
        """Has logins that the run's data may need and that run.json does not record."""
        self.running: set[str] = set()
        """The stages that run now."""
        self.refusals: Refusals | None = None
        """What MLflow refused, once it was asked for anything."""
        self._folder = folder
        self._uri = tracking_uri
        self._experiment = experiment
        self._is_live = is_live
        self._job_url = job_url
        self._follower: Follower | None = None
        self._is_asked = threading.Event()
        """Whether to look for new results, too, and not for new commits only."""
        self._is_asked.set()
        self._samples = SystemSamples(sample_s)
        self._runs: MlflowRuns | None = None

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

    def look_again(self) -> None:
        """Look for new results with the next delivery."""
        self._is_asked.set()

    def poll(self) -> None:
        """Measure the machine's load while the run is trained here."""
        if self._is_live and not (self._follower and self._follower.is_complete):
            self._samples.measure()

    def deliver(self) -> None:
        """Send commits, samples and results, in this order."""
        with self._opened_runs() as runs:
            follower = self._follower
            assert follower is not None, "it was made with the runs"
            follower.follow_commits(runs)
            if follower.is_complete:
                self._samples.clear()
            self._samples.send(runs)
            if not self._is_asked.is_set():
                return
            # Before the folder is read: what is committed meanwhile is asked for again.
            self._is_asked.clear()
            try:
                follower.follow_results(runs, self.running)
            except Exception:
                self._is_asked.set()
                raise
            self.tracking = self.tracking.model_copy(update={"model_uri": follower.model_uri})

    def end(self, status: EndStatus, why: str = "") -> None:
        """End the MLflow runs; `why` says why the run has failed.

        Deliver nothing afterwards: it would show them as running.
        """
        with self._opened_runs() as runs:
            runs.end(status, why)

    def describe(self, error: Exception) -> str:
        """The error's message without the login that the server's address has."""
        return without_login_of(str(error), self._uri)

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
        from train_core.engine.tracking.follow import Follower
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
            refusals=self.refusals,
        )
        uri, run_id = public_uri(self._uri).rstrip("/"), runs.run_id("pipeline")
        if self._follower is None or run_id != self.tracking.run_id:
            self._follower = Follower(self._folder, self.config)
        self._follower.forget_commits()
        page = run_page(uri, runs.experiment_id, run_id)
        self.tracking = Tracking(
            tracking_uri=uri,
            experiment_id=runs.experiment_id,
            run_id=run_id,
            url=page if uri.startswith("http") else "",
            model_uri=self.tracking.model_uri,
        )
        return runs


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
