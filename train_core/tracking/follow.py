"""Follows a run folder: brings a tracker to the state that the folder has committed.

The driver's mirror follows in a loop, `evertrain mirror` once: what the tracker shows of the run is
derived from the folder. Following again changes nothing. `docs/tracking.md` lists what only the
driver can know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from train_core.champion.of_run import (
    gates_of,
    newest_gate,
    question_after_training,
)
from train_core.config import TrainConfig
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.end_status import EndStatus
from train_core.policy.metric_names import TEST
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    GateResult,
    PredictionsResult,
    Report,
)
from train_core.storage.evaluations import committed_evaluations
from train_core.storage.predictions import committed_predictions
from train_core.storage.records.names import CheckpointName
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import read_report
from train_core.text.shown_text import shown as as_text
from train_core.text.shown_text import without_secrets
from train_core.tracking.description.datasets import data_of_splits
from train_core.tracking.description.note import Outcome
from train_core.tracking.description.parameters import parameters
from train_core.tracking.refusals import Refusals
from train_core.tracking.show_models import complete_models
from train_core.tracking.show_results import (
    show_evaluation,
    show_figures,
    show_gate,
    show_outcome,
    show_predictions,
)
from train_core.tracking.show_training import ShownTraining
from train_core.tracking.shown_run import FAILURE_TAG, JOB_TAG, ShownRun, describe
from train_core.tracking.tracker import (
    Stage,
    TrackedRun,
    Tracker,
)

NOT_SHOWN = "evertrain.not_shown"
"""The tag with what the tracker refused of the run, and why."""
_MAX_TAG = 5000
_log = logging.getLogger("train_core.tracking")


def tracked_run(folder: RunFolder, record: RunRecord, job_url: str = "") -> TrackedRun:
    """The run as a tracker identifies it. `job_url` is the page of the job that drives it."""
    return TrackedRun(
        id=folder.record_digest(),
        name=folder.name,
        url=folder.url,
        uri=folder.store.uri("").rstrip("/"),
        workload=record.config.workload,
        commit=record.code.get("commit", ""),
        job_url=job_url,
        search=record.search.search if record.search else "",
    )


class Follower:
    """Shows a run folder in a tracker, and remembers what it has sent.

    A run that is not `is_live` is shown afterwards: its stages are not set to running again.
    `config` as of `ShownRun`. `shown` is there once `begin` was called.
    """

    shown: ShownRun
    _training: ShownTraining

    def __init__(
        self,
        folder: RunFolder,
        refusals: Refusals,
        *,
        is_live: bool,
        job_url: str = "",
        config: TrainConfig | None = None,
    ) -> None:
        self.model_uri = ""
        """The address of the best checkpoint's model, once it is there."""
        self.is_complete = False
        """Whether the training's last checkpoint was sent."""
        self._folder = folder
        self._refusals = refusals
        self._is_live = is_live
        self._job_url = job_url
        self._config = config
        self._sent: dict[str, str] = {}
        """The results that were sent, as they were then."""
        self._has_measured = False
        """Whether models have metrics that were measured while training."""

    def begin(self, tracker: Tracker, record: RunRecord) -> None:
        """Show the run as it was asked for; from now on with this tracker.

        Call it again with a new tracker after an outage: all is compared with what that has.
        """
        self.shown = ShownRun(
            self._folder, record, tracker, self._refusals, self._is_live, self._config
        )
        self._training = ShownTraining(self.shown)
        # Somebody may have deleted a part meanwhile: all is said once more.
        self._sent = {}
        self.shown.open("pipeline")
        tags = {
            "evertrain.workload": record.config.workload,
            **{f"fingerprint.{key}": text for key, text in record.fingerprint.items()},
            JOB_TAG: self._job_url,
        }
        with self._refusals.passing("the facts of the run"):
            tracker.tags("pipeline", {name: text for name, text in tags.items() if text})
            tracker.parameters("pipeline", parameters(record), data_of_splits(record))
        self.shown.open("pipeline", is_running=True)
        if self._is_live:
            describe(self.shown)

    def follow_commits(self) -> None:
        """Send the entries that the tracker does not have, if there is a new commit."""
        self.is_complete = self._training.follow()

    def follow_results(self, running: Collection[str] = ()) -> None:
        """Send evaluations, the report, decisions and predictions that were not sent yet.

        `running` are the stages that run now.
        """
        report, evaluations = self._read_evaluations()
        for result in evaluations:
            what = f"evaluation {_place(result.uri)}"
            self._send(what, partial(show_evaluation, self.shown, result))
            if result.split == TEST:
                self._send(f"the figures of {what}", partial(show_figures, self.shown, result))
        if report:
            self._follow_report(report)
        decided: list[GateResult] = []
        with self._refusals.passing("the decisions"):
            decided = [one.result for one in gates_of(self._folder)]
        for found in decided:
            what = f"the decision on {found.decision.challenger.address}"
            self._send(what, partial(show_gate, self.shown, found), found.model_dump_json())
        predictions: list[PredictionsResult] = []
        with self._refusals.passing("the predictions"):
            predictions = committed_predictions(self._folder)
        for one in predictions:
            what = f"predictions {one.uri.rpartition('/')[2]}"
            self._send(what, partial(show_predictions, self.shown, one))
        has_metrics = bool(evaluations) or self._has_measured
        scored: dict[Stage, bool] = {"evaluate": has_metrics, "infer": bool(predictions)}
        for stage, has_results in scored.items():
            if stage in running:
                self.shown.open(stage, is_running=True)
            elif has_results and (report or self._is_live or self.shown.is_open(stage)):
                # Afterwards, one that was ended as failed stays so while the run has no report.
                self.shown.close(stage, EndStatus.FINISHED)

    def end(self, status: EndStatus, why: str = "") -> None:
        """End every stage that still runs, the run last; `why` says why the run has failed.

        A run whose version waits for a person's answer has not ended: it is shown as SCHEDULED.
        """
        children: tuple[Stage, ...] = ("train", "evaluate", "infer")
        for stage in children:
            if self.shown.statuses.get(stage) == "RUNNING":
                self.shown.close(stage, status)
        # A run that is shown afterwards may have its final status already.
        if status != EndStatus.FAILED and self._waits():
            self.shown.close("pipeline", "SCHEDULED")
        elif self._is_live or status == EndStatus.FINISHED or self.shown.is_open():
            self.shown.close("pipeline", status)
        if status == EndStatus.FAILED and why:
            self.shown.tag("pipeline", {FAILURE_TAG: without_secrets(as_text(why))[:_MAX_TAG]})
        describe(self.shown)
        self._tell_refusals()

    def _read_evaluations(self) -> tuple[Report | None, Sequence[EvaluationResult]]:
        """The report, and the evaluations; also those that the report alone names, to be told."""
        report: Report | None = None
        found: list[EvaluationResult] = []
        with self._refusals.passing("the report"):
            report = read_report(self._folder)
        with self._refusals.passing("the evaluations"):
            found = committed_evaluations(self._folder)
        known = {_place(result.uri) for result in found}
        named = report.evaluations if report else []
        return report, [*found, *(one for one in named if _place(one.uri) not in known)]

    def _follow_report(self, report: Report) -> None:
        newest = self._folder.newest()
        is_of_newest = newest is None or report.train.step >= newest.step
        best = CheckpointName.parse(report.best.name) if report.best else None
        if not is_of_newest and not (best and self._folder.exists_checkpoint(best)):
            # The run was extended since, and has another best.
            return
        outcome = Outcome.of(self._folder, report)
        state = f"{outcome} after step {report.train.step}"
        self._send("the outcome", partial(self._show_outcome, outcome), state)
        if report.best is None:
            return
        # A part of its own: a model that cannot be shown must not hide the metrics.
        models = partial(self._complete_models, report.best, is_finished=is_of_newest)
        self._send("the models", models, f"{report.best.uri} after step {report.train.step}")

    def _show_outcome(self, outcome: Outcome) -> None:
        show_outcome(self.shown, outcome)
        describe(self.shown)

    def _complete_models(self, best: CheckpointSummary, *, is_finished: bool) -> None:
        done = complete_models(self.shown, best, is_finished=is_finished)
        self._has_measured = done.has_metrics
        self.model_uri = done.best_uri

    def _waits(self) -> bool:
        """Whether the run's version waits for a person's answer, as far as it can be read."""
        try:
            question = question_after_training(self._folder, newest_gate(self._folder))
        except (CheckpointError, ConfigError) as error:
            # One damaged decision does not keep the run's status from the tracker.
            _log.warning("whether a version of the run waits for approval is not known: %s", error)
            return False
        return question is not None and not question.is_answered

    def _tell_refusals(self) -> None:
        """Say in the tracker what it does not have; a mirror of all of it takes that back.

        A part that was left out of an earlier attempt may still be missing: it stays told.
        """
        if told := "; ".join(self._refusals.told):
            self.shown.tag("pipeline", {NOT_SHOWN: told[:_MAX_TAG]})
        elif not self._is_live and NOT_SHOWN in self.shown.open("pipeline").tags:
            self.shown.tag("pipeline", {NOT_SHOWN: ""})

    def _send(self, what: str, send: Callable[[], None], state: str = "") -> None:
        """Send a result once in that state. What is refused is left out; an outage raises."""
        if self._sent.get(what) == state:
            return
        # It would fail again and keep the later results waiting.
        with self._refusals.passing(what):
            send()
        self._sent[what] = state


def _place(uri: str) -> str:
    """Where an evaluation lies below all of its run's, wherever that lies."""
    return "/".join(uri.rstrip("/").split("/")[-2:])
