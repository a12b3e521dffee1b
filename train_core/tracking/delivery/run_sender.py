"""The sender of the mirror: what the run folder has committed, and samples of the machine's load.

`tracking/__init__.py` lists the whole way of a metric.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from train_core.errors import TrackingError
from train_core.policy.end_status import EndStatus
from train_core.policy.logins import without_login_of
from train_core.quick_imports import garbage_collection_paused
from train_core.results import Tracking
from train_core.storage.run_folder import RunFolder
from train_core.tracking.journal_points import points_of, seconds
from train_core.tracking.mlflow.client_settings import REPEATED_BY_CALLER
from train_core.tracking.tracker import Points, Tracker

# Loading MLflow takes seconds: it is imported in the delivery's thread, while Ray starts.
if TYPE_CHECKING:
    from train_core.config import TrainConfig
    from train_core.tracking.follow import Follower
    from train_core.tracking.mlflow.system import SystemMetrics
    from train_core.tracking.refusals import Refusals

LoadTracker = Callable[[], type[Tracker]]
"""Imports a kind of tracker, in the delivery's thread."""
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
        load_tracker: LoadTracker,
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
        self._load_tracker = load_tracker
        self._tracker: Tracker | None = None

    def connect(self) -> None:
        """Load the tracker, and ask it whether it refuses."""
        REPEATED_BY_CALLER.apply()
        try:
            with garbage_collection_paused():
                tracker = self._load_tracker()
            tracker.contact(self._uri, self._experiment)
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
        with self._opened() as (tracker, follower):
            follower.follow_commits()
            if follower.is_complete:
                self._samples.clear()
            self._samples.send(tracker, self._begun_s)
            if not self._is_asked.is_set():
                return
            # Before the folder is read: what is committed meanwhile is asked for again.
            self._is_asked.clear()
            try:
                follower.follow_results(self.running)
            except Exception:
                self._is_asked.set()
                raise
            self.tracking = self.tracking.model_copy(update={"model_uri": follower.model_uri})

    def end(self, status: EndStatus, why: str = "") -> None:
        """End the run in the tracker; `why` says why the run has failed.

        Deliver nothing afterwards: it would show the run as running.
        """
        with self._opened() as (_, follower):
            follower.end(status, why)

    def describe(self, error: Exception) -> str:
        """The error's message without the login that the server's address has."""
        return without_login_of(str(error), self._uri)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Tracker, Follower]]:
        try:
            is_open = self._tracker is not None
            tracker, follower = self._tracker or self._open_tracker(), self._follower
            assert self.refusals, "they are made with the tracker"
            assert follower, "it is made with the tracker"
            self.refusals.are_ids_new = not is_open
            yield tracker, follower
        except Exception:
            # The next attempt asks for all ids again, as the run may have been deleted meanwhile,
            # and looks at all results: what was under way may be half done.
            self._tracker = None
            self._is_asked.set()
            raise

    def _open_tracker(self) -> Tracker:
        from train_core.tracking.follow import Follower, tracked_run
        from train_core.tracking.refusals import Refusals

        load = self._load_tracker()
        self.refusals = self.refusals or Refusals(self.describe, load.failure_of)
        self.refusals.are_ids_new = True
        self._follower = self._follower or Follower(
            self._folder,
            self.refusals,
            is_live=self._is_live,
            job_url=self._job_url,
            config=self.config,
        )
        record = self._folder.record()
        self._begun_s = seconds(record.created_at)
        run = tracked_run(self._folder, record, self._job_url)
        tracker = load(self._uri, self._experiment, run, self.refusals)
        self._follower.begin(tracker, record)
        self.tracking = tracker.place.model_copy(update={"model_uri": self.tracking.model_uri})
        self._tracker = tracker
        return tracker


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
        self._next_at = time.monotonic() + self._every_s
        try:
            from train_core.tracking.mlflow.system import SystemMetrics

            self._metrics = self._metrics or SystemMetrics()
            self._samples.append((time.time(), self._metrics.sample()))
        except Exception as error:  # noqa: BLE001 (a machine may hide what is to be measured)
            _log.debug("the machine's load cannot be measured: %s", error)

    def clear(self) -> None:
        """Drop the samples that were not sent."""
        self._samples.clear()

    def send(self, tracker: Tracker, begun_s: float) -> None:
        """Send the samples, oldest first, at steps that no other sample has."""
        while self._samples:
            time_s, values = self._samples[0]
            # Seconds since the run began: the same when sent again, and growing over attempts.
            step = max(int(time_s - begun_s), 0)
            tracker.metrics("train", [Points(points_of(values, step, time_s))])
            self._samples.popleft()
