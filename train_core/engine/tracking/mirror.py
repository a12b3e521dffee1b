"""The mirror: shows in MLflow what the run folder has committed, exactly once.

One thread does all the talking: it looks for new commits, sends what MLflow does not have, and
tries again later what failed. The training never waits for it. How far it came is kept in
MLflow beside the metrics, so that the next attempt goes on from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from train_core.engine.tracking.client import REPEATED_BY_CALLER
from train_core.errors import TrackingError
from train_core.policy.end_status import EndStatus
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    PredictionsResult,
    Tracking,
)
from train_core.storage.records.names import CHECKPOINTS, MANIFEST_JSON
from train_core.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from train_core.config import TrainConfig
    from train_core.engine.tracking.runs import MlflowRuns
    from train_core.engine.tracking.system import SystemMetrics

POLL_S = 1.0
SAMPLE_S = 10.0
MAX_SAMPLES = 1000
MAX_BACKOFF_S = 60.0
# Whoever waits for the mirror gives up when the server has been down for so long.
PATIENCE_S = 5.0
_log = logging.getLogger(__name__)

_Task = Callable[["MlflowRuns"], None]


class Mirror:
    """Mirrors one run folder into one MLflow experiment.

    `connect` begins in the background, `check` says whether the server refuses, `start` begins
    to mirror once the run folder exists. The `log_` methods return at once: what they are given
    is sent in their order, after all that was committed before. `close` must be called.
    Of a run that is not `is_live`, what MLflow missed is shown, and not this machine's load.
    """

    def __init__(
        self,
        folder: RunFolder,
        tracking_uri: str,
        experiment: str,
        *,
        is_live: bool = True,
        job_url: str = "",
    ) -> None:
        self.not_shown: list[str] = []
        """Why something cannot be shown, though MLflow answers."""
        self._is_live = is_live
        self._folder = folder
        self._uri = tracking_uri
        self._experiment = experiment
        self._job_url = job_url
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._refusal: TrackingError | None = None
        self._contacted = self._started = self._closed = self._is_over = False
        self._asked = self._done = 0
        self._end_status: EndStatus | None = None
        self._end_in = 0
        self._failures = 0
        self._failed_since: float | None = None
        self._failed_last = 0.0
        self._tasks: deque[_Task] = deque()
        self._runs: MlflowRuns | None = None
        self._seen: set[str] = set()
        self._told: set[str] = set()
        self._is_trained = False
        self._system: SystemMetrics | None = None
        self._sample_at = 0.0
        self._samples: deque[tuple[float, dict[str, float]]] = deque(maxlen=MAX_SAMPLES)
        self._tracking = Tracking()

    def connect(self) -> None:
        """Begin to load MLflow and to ask the server, in the background."""
        if self._thread.ident is None:
            self._thread.start()

    def check(self, timeout_s: float = 15) -> None:
        """Raise TrackingError if the server refuses; one that is merely down is fine."""
        self.connect()
        with self._changed:
            self._changed.wait_for(lambda: self._contacted, timeout_s)
            if self._refusal:
                raise self._refusal

    def start(self) -> None:
        """Begin to mirror. The run folder must have its run.json."""
        self.connect()
        with self._changed:
            self._started = True
            self._changed.notify_all()

    def begin(self, stage: Literal["evaluate", "infer"]) -> None:
        """Show that a stage has begun."""
        self._add(lambda runs: runs.set_status(stage, "RUNNING"))

    def log_evaluations(self, results: Sequence[EvaluationResult]) -> None:
        """Show metrics and confusion matrices of evaluated checkpoints, each once."""
        new = [result for result in results if result.uri not in self._told]
        self._told |= {result.uri for result in new}
        if new:
            self._add(lambda runs: _stages().show_evaluations(runs, new))

    def log_predictions(self, result: PredictionsResult) -> None:
        """Show where the predictions of a batch inference are, once."""
        if result.uri not in self._told:
            self._told.add(result.uri)
            self._add(lambda runs: _stages().show_predictions(runs, result))

    def log_outcome(
        self,
        best: CheckpointSummary,
        test_metrics: dict[str, float | None],
        config: TrainConfig | None = None,
    ) -> None:
        """Show the run's outcome on its parent run: headline metrics, and the best model.

        `config` is the one with logins, which the model's example may need to be read.
        """
        self._add(lambda runs: _stages().show_outcome(runs, best, test_metrics))
        # A task of its own: a model that cannot be shown must not hide the metrics.
        log_model = partial(self._log_model, best=best, test_metrics=test_metrics, config=config)
        self._add(log_model)

    def flush(self, timeout_s: float = 60) -> bool:
        """Wait until MLflow has all that was committed and logged before; whether it has.

        Gives up early when the server has been down for PATIENCE_S.
        """
        with self._changed:
            self._asked += 1
            asked, failures = self._asked, self._failures
            self._changed.notify_all()

            def has_ended() -> bool:
                since = self._failed_since
                is_down = since is not None and time.monotonic() - since > PATIENCE_S
                return self._done >= asked or (is_down and self._failures > failures)

            self._changed.wait_for(has_ended, timeout_s)
            return self._done >= asked

    def tracking(self) -> Tracking:
        """Where MLflow shows the run, as far as it could be told."""
        return self._tracking

    def close(self, status: EndStatus | None, timeout_s: float = 30) -> bool:
        """Send what is left, end the MLflow runs with `status`, and stop; whether all was sent.

        Without a status it only stops: the run is somebody else's now.
        """
        is_sent = True
        if self._started and status:
            with self._changed:
                # By the attempt that the flush asks for, and none before: it has seen all commits.
                self._end_status, self._end_in = status, self._asked + 1
            is_sent = self.flush(timeout_s)
            if not is_sent:
                _log.warning(
                    "MLflow has not all of run %r. Nothing is lost: `evertrain mirror %s` sends "
                    "the rest from %s.",
                    self._folder.name,
                    self._folder.name,
                    self._folder.url,
                )
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            # A request on its way ends by its own timeout; the thread is a daemon.
            self._thread.join(PATIENCE_S)
        return is_sent

    def _add(self, task: _Task) -> None:
        assert self._started, "start the mirror first"
        with self._changed:
            self._tasks.append(task)
            self._changed.notify_all()

    def _work(self) -> None:
        self._contact()
        with self._changed:
            self._contacted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._started or self._closed)
        while not (self._closed or self._is_over):
            asked = self._asked
            self._sample_system()
            if asked > self._done or self._is_due():
                self._attempt(asked)
            with self._changed:
                self._changed.wait_for(partial(self._is_wanted, asked), POLL_S)

    def _is_wanted(self, asked: int) -> bool:
        return self._closed or self._asked > asked

    def _is_due(self) -> bool:
        """Whether to try now: always while all is well, ever more rarely in an outage."""
        if self._failed_since is None:
            return True
        backoff_s = min(self._failed_last - self._failed_since, MAX_BACKOFF_S)
        return time.monotonic() - self._failed_last >= backoff_s

    def _contact(self) -> None:
        REPEATED_BY_CALLER.apply()
        # Here, and not at the top: loading MLflow takes seconds, which pass beside Ray's start.
        from train_core.engine.tracking.server import contact

        try:
            contact(self._uri, self._experiment)
        except TrackingError as error:
            self._refusal = error
        except Exception as error:  # noqa: BLE001 (the client raises what its transport raises)
            _log.warning("MLflow does not answer, and is tried again later: %s", self._say(error))

    def _attempt(self, asked: int) -> None:
        try:
            runs = self._runs or self._open_runs()
            self._mirror_training(runs)
            self._run_tasks(runs)
            if self._end_status and asked >= self._end_in:
                runs.end(self._end_status)
                # A training that was stopped may commit once more; that would show it as running.
                self._is_over = True
        except Exception as error:  # noqa: BLE001 (whatever it is, the training goes on)
            # The next attempt looks everything up again: it may have been deleted meanwhile.
            self._runs = None
            if self._failed_since is None:
                said = self._say(error)
                _log.warning("mirroring into MLflow fails, and is tried again: %s", said)
            with self._changed:
                self._failed_last = time.monotonic()
                self._failed_since = self._failed_since or self._failed_last
                self._failures += 1
                self._changed.notify_all()
        else:
            if self._failed_since is not None:
                _log.warning("mirroring into MLflow goes on")
            with self._changed:
                self._failed_since = None
                self._done = asked
                self._changed.notify_all()

    def _open_runs(self) -> MlflowRuns:
        from train_core.engine.tracking.runs import MlflowRuns
        from train_core.engine.tracking.server import public_uri

        runs = MlflowRuns(self._folder, self._uri, self._experiment, is_live=self._is_live)
        if self._job_url:
            runs.link_job(self._job_url)
        uri, run_id = public_uri(self._uri).rstrip("/"), runs.run_id("pipeline")
        page = f"{uri}/#/experiments/{runs.experiment_id}/runs/{run_id}"
        self._tracking = Tracking(
            tracking_uri=uri,
            experiment_id=runs.experiment_id,
            run_id=run_id,
            url=page if uri.startswith("http") else "",
            model_uri=self._tracking.model_uri,
        )
        self._seen = set()
        self._runs = runs
        return runs

    def _mirror_training(self, runs: MlflowRuns) -> None:
        committed = self._committed_names()
        if not runs.is_known("train") or not committed <= self._seen:
            self._is_trained = _stages().show_training(runs)
            self._seen = committed
        if self._is_trained:
            self._samples.clear()
        while self._samples:
            time_s, values = self._samples[0]
            runs.log_system_metrics(values, time_s)
            self._samples.popleft()

    def _committed_names(self) -> set[str]:
        """What looks committed, asked as cheaply as can be: it is asked every second."""
        store = self._folder.store
        return {
            name
            for name in store.names(CHECKPOINTS)
            if name in self._seen or store.exists(f"{CHECKPOINTS}/{name}/{MANIFEST_JSON}")
        }

    def _run_tasks(self, runs: MlflowRuns) -> None:
        from train_core.engine.tracking.server import is_outage

        while self._tasks:
            try:
                self._tasks[0](runs)
            except Exception as error:
                if is_outage(error):
                    raise
                # It would fail again, and what comes after it shall be shown.
                said = f"{type(error).__name__}: {self._say(error)}"
                self.not_shown.append(said)
                _log.warning("something is not shown in MLflow: %s", said)
                _log.debug("where it failed", exc_info=True)
            self._tasks.popleft()

    def _say(self, error: Exception) -> str:
        from train_core.engine.tracking.server import without_login

        return without_login(str(error), self._uri)

    def _sample_system(self) -> None:
        if self._is_trained or not self._is_live or time.monotonic() < self._sample_at:
            return
        from train_core.engine.tracking.system import SystemMetrics

        self._sample_at = time.monotonic() + SAMPLE_S
        try:
            self._system = self._system or SystemMetrics()
            self._samples.append((time.time(), self._system.sample()))
        except Exception as error:  # noqa: BLE001 (a machine may hide what is to be measured)
            _log.debug("the machine's load is not known: %s", error)

    def _log_model(
        self,
        runs: MlflowRuns,
        best: CheckpointSummary,
        test_metrics: dict[str, float | None],
        config: TrainConfig | None,
    ) -> None:
        from train_core.engine.tracking.models import log_checkpoint_model

        uri = log_checkpoint_model(runs, best, test_metrics, config)
        self._tracking = self._tracking.model_copy(update={"model_uri": uri})


def _stages() -> ModuleType:
    """What a stage shows; imported late, like all that loads MLflow or matplotlib."""
    from train_core.engine.tracking import stages

    return stages
