"""The mirror: shows in MLflow what the run folder has committed, exactly once.

A thread of its own polls for new commits, sends what MLflow does not have, and repeats later what
failed; the training never waits for it. How much of the journal was sent is kept in MLflow beside
the metrics, so that the next attempt goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from train_core.engine.tracking.delivery.delivery_thread import TIMING, Delivery, Timing
from train_core.engine.tracking.delivery.run_sender import RunSender, Task
from train_core.policy.end_status import EndStatus
from train_core.policy.metric_names import TEST
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    GateResult,
    PredictionsResult,
    Tracking,
)
from train_core.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from train_core.config import TrainConfig
    from train_core.engine.tracking.mlflow_runs import MlflowRuns

_log = logging.getLogger(__name__)


class Mirror:
    """Mirrors one run folder into one MLflow experiment.

    `connect` begins in the background, `check` raises if the server refuses, `start` begins to
    mirror once the run folder exists. The `log_` methods return at once: their arguments are sent
    in the order of the calls, after everything that was committed before. `close` must be called.
    The load of this machine is sent for a run that `is_live` only.
    """

    def __init__(
        self,
        folder: RunFolder,
        tracking_uri: str,
        experiment: str,
        *,
        is_live: bool = True,
        job_url: str = "",
        timing: Timing = TIMING,
    ) -> None:
        self._folder = folder
        self._timing = timing
        self._sender = RunSender(
            folder,
            tracking_uri,
            experiment,
            is_live=is_live,
            job_url=job_url,
            sample_s=timing.sample_s,
        )
        self._delivery = Delivery("mirroring into MLflow", self._sender, timing)
        self._logged: set[str] = set()
        """The addresses of evaluations and predictions that were logged."""

    @property
    def not_shown(self) -> list[str]:
        """The reasons why parts cannot be shown, though MLflow answers."""
        return self._sender.refusals.told if self._sender.refusals else []

    def connect(self) -> None:
        """Begin to load MLflow and to ask the server, in the background."""
        self._delivery.connect()

    def check(self) -> None:
        """Raise TrackingError if the server refuses; a server that is down is no error."""
        self._delivery.wait_until_connected(self._timing.check_s)
        if self._sender.refusal:
            raise self._sender.refusal

    def start(self) -> None:
        """Begin to mirror. The run folder must have its run.json."""
        self._delivery.start()

    def begin(self, stage: Literal["evaluate", "infer"]) -> None:
        """Show that a stage has begun."""
        self._add(lambda runs: runs.set_status(stage, "RUNNING"))

    def log_evaluations(
        self, results: Sequence[EvaluationResult], config: TrainConfig | None = None
    ) -> None:
        """Show metrics and confusion matrices of evaluated checkpoints, each once.

        Those of the test split have more figures. `config` has the logins that may be needed to
        read its samples.
        """
        new = [result for result in results if result.uri not in self._logged]
        self._logged |= {result.uri for result in new}
        if new:
            self._add(lambda runs: _stages().show_evaluations(runs, new))
        for result in new:
            if result.split == TEST:
                self._add(partial(_show_figures, result=result, config=config))

    def log_predictions(self, result: PredictionsResult) -> None:
        """Show where the predictions of a batch inference are, once."""
        if result.uri not in self._logged:
            self._logged.add(result.uri)
            self._add(lambda runs: _stages().show_predictions(runs, result))

    def log_outcome(
        self,
        best: CheckpointSummary,
        test_metrics: dict[str, float | None],
        config: TrainConfig | None = None,
        *,
        decision: str = "",
        flow_run: str = "",
    ) -> None:
        """Show the run's result on its parent run: headline metrics, and the best model.

        `config` has the logins that may be needed to read the model's example. `decision` is what
        the gate decided and `flow_run` the flow run that ends the pipeline, for the description:
        each a line of Markdown, empty if there was none.
        """
        self._add(
            lambda runs: self._sender.show_outcome(runs, best, test_metrics, decision, flow_run)
        )
        # A task of its own: a model that cannot be shown must not hide the metrics.
        self._add(partial(self._sender.log_models, best=best, config=config))

    def log_gate(self, result: GateResult) -> None:
        """Show the decision, the registered version, and the aliases, the champion's last."""
        self._add(partial(self._sender.log_gate, result=result))

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until MLflow has all that was committed and logged before; return whether it has.

        Gives up early when the server has been down for the timing's `down_after_s`.
        """
        return self._delivery.flush(self._timing.flush_s if timeout_s is None else timeout_s)

    def tracking(self) -> Tracking:
        """Where MLflow shows the run, as far as is known."""
        return self._sender.tracking

    def close(self, status: EndStatus | None, timeout_s: float | None = None) -> bool:
        """Send the rest, end the MLflow runs with `status`, and stop; return whether all was sent.

        Without a status the mirror only stops: another attempt drives the run.
        """
        is_sent = True
        if status and self._delivery.is_started:
            self._delivery.finish_with_next_flush(partial(self._sender.end, status))
            is_sent = self.flush(self._timing.close_s if timeout_s is None else timeout_s)
            if not is_sent:
                _log.warning(
                    "MLflow has not all of run %r. Nothing is lost: `evertrain mirror %s` sends "
                    "the rest from %s.",
                    self._folder.name,
                    self._folder.name,
                    self._folder.url,
                )
        self._delivery.close()
        return is_sent

    def _add(self, task: Task) -> None:
        assert self._delivery.is_started, "start the mirror first"
        self._sender.tasks.add(task)


def _show_figures(runs: MlflowRuns, result: EvaluationResult, config: TrainConfig | None) -> None:
    # Imported late: it loads matplotlib.
    from train_core.engine.tracking.pictures import show_score_figures

    show_score_figures(runs, result, config)


def _stages() -> ModuleType:
    """The functions that show a stage; imported late, as they load MLflow and matplotlib."""
    from train_core.engine.tracking import show_stages

    return show_stages
