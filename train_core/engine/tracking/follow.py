"""Follows a run folder: brings MLflow to the state that the folder has committed.

The driver's mirror follows in a loop, `evertrain mirror` once: what MLflow shows of the run's
results is derived from the folder. Following again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from train_core.config import TrainConfig
from train_core.engine.metrics import figures
from train_core.engine.tracking.description.note import Outcome
from train_core.engine.tracking.mlflow_runs import MlflowRuns, Stage, seconds
from train_core.engine.tracking.models.kept import log_evaluation, log_measured, sync_models
from train_core.engine.tracking.models.logged import copy_kept_models
from train_core.engine.tracking.models.registered import show_gate
from train_core.engine.tracking.pictures import show_curves, show_score_figures
from train_core.errors import CheckpointError
from train_core.loading import workload_class
from train_core.policy.end_status import EndStatus
from train_core.policy.logins import hide_secrets
from train_core.policy.metric_names import BEST, TEST, VALIDATION, full_name, full_names, is_of
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    GateResult,
    PredictionsResult,
    Report,
)
from train_core.storage.committed import open_result
from train_core.storage.evaluations import committed_evaluations
from train_core.storage.objects.store import Store
from train_core.storage.predictions import committed_predictions
from train_core.storage.records.documents import parse_json
from train_core.storage.records.journal import read_good_segments
from train_core.storage.records.manifest import (
    EvaluationManifest,
    PredictionsManifest,
    read_manifest,
)
from train_core.storage.records.names import (
    CHECKPOINTS,
    CONFUSION_MATRIX_JSON,
    PREDICTIONS,
    CheckpointName,
    SegmentName,
)
from train_core.storage.records.verified_files import read_file
from train_core.storage.registered_models.decisions import gate_result, newest_decisions
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import read_report

_PREDICTIONS_OF = "evertrain.predictions_created"


class Follower:
    """Sends what a run folder has committed, and remembers what was sent."""

    def __init__(self, folder: RunFolder, config: TrainConfig | None) -> None:
        """`config` has logins that the samples may need and that run.json does not record."""
        self.is_complete = False
        """Whether the training's last checkpoint was sent."""
        self.model_uri = ""
        """The address of the best checkpoint's model, once it is there."""
        self._folder = folder
        self._config = config
        self._commits: set[str] | None = None
        """The names of the commits that were sent; None: nothing was compared with MLflow yet."""
        self._sent: dict[str, str] = {}
        """The results that were sent, as they were then."""

    def forget_commits(self) -> None:
        """Compare all commits with MLflow when they are sent next."""
        self._commits = None

    def follow_commits(self, runs: MlflowRuns) -> None:
        """Send the entries that MLflow does not have, if there is a new commit."""
        committed = self._committed_names()
        if self._commits is None or not committed <= self._commits:
            self.is_complete = show_training(runs)
            self._commits = committed

    def follow_results(self, runs: MlflowRuns, running: Collection[str] = ()) -> None:
        """Send evaluations, the report, decisions and predictions that were not sent yet.

        `running` are the stages that run now.
        """
        report, evaluations = self._read_evaluations(runs)
        for result in evaluations:
            what = f"evaluation {_place(result.uri)}"
            self._send(runs, what, partial(show_evaluation, runs, result))
            if result.split == TEST:
                draw = partial(show_score_figures, runs, result, self._config)
                self._send(runs, f"the figures of {what}", draw)
        if report:
            self._follow_report(runs, report)
        decided: list[GateResult] = []
        with runs.refusals.passing("the decisions"):
            decided = [gate_result(self._folder, one) for one in newest_decisions(self._folder)]
        for found in decided:
            state = found.model_dump_json()
            what = f"the decision on {found.decision.challenger.address}"
            self._send(runs, what, partial(show_gate, runs, found), state)
        predictions: list[PredictionsResult] = []
        with runs.refusals.passing("the predictions"):
            predictions = committed_predictions(self._folder)
        for one in predictions:
            what = f"predictions {one.uri.rpartition('/')[2]}"
            self._send(runs, what, partial(show_predictions, runs, one))
        scored: dict[Stage, bool] = {"evaluate": bool(evaluations), "infer": bool(predictions)}
        for stage, has_results in scored.items():
            if stage in running:
                runs.set_status(stage, "RUNNING")
            elif has_results and (report or runs.is_live or runs.is_open(stage)):
                # Afterwards, one that was ended as failed stays so while the run has no report.
                runs.set_status(stage, EndStatus.FINISHED)

    def _read_evaluations(
        self, runs: MlflowRuns
    ) -> tuple[Report | None, Sequence[EvaluationResult]]:
        """The report, and the evaluations; also those that the report alone names, to be told."""
        report: Report | None = None
        found: list[EvaluationResult] = []
        with runs.refusals.passing("the report"):
            report = read_report(self._folder)
        with runs.refusals.passing("the evaluations"):
            found = committed_evaluations(self._folder)
        known = {_place(result.uri) for result in found}
        named = report.evaluations if report else []
        return report, [*found, *(one for one in named if _place(one.uri) not in known)]

    def _follow_report(self, runs: MlflowRuns, report: Report) -> None:
        newest = self._folder.newest()
        is_of_newest = newest is None or report.train.step >= newest.step
        best = CheckpointName.parse(report.best.name)
        if not is_of_newest and not (best and self._folder.exists_checkpoint(best)):
            # The run was extended since, and has another best.
            return
        outcome = Outcome.of(self._folder, report)
        state = f"{outcome} after step {report.train.step}"
        self._send(runs, "the outcome", partial(show_outcome, runs, outcome), state)
        # A part of its own: a model that cannot be shown must not hide the metrics.
        models = partial(self._follow_models, runs, report.best, is_finished=is_of_newest)
        state = f"{report.best.uri} after step {report.train.step}"
        self._send(runs, "the models", models, state)

    def _follow_models(
        self, runs: MlflowRuns, best: CheckpointSummary, *, is_finished: bool
    ) -> None:
        """Complete the models of the kept checkpoints, and note the address of the best one's.

        Only a predictor knows what is in a folder that a training function reported: without one, a
        model refers to it.
        """
        checkpoints = self._folder.checkpoints()
        with runs.refusals.passing("the models of the checkpoints"):
            sync_models(runs, checkpoints, is_finished=is_finished)
            log_measured(runs, checkpoints)
        if self._folder.newest_request().config.has_workload:
            self.model_uri = copy_kept_models(runs, best, self._config)

    def _send(self, runs: MlflowRuns, what: str, send: Callable[[], None], state: str = "") -> None:
        """Send a result once in that state. What MLflow refuses is left out; an outage raises."""
        if self._sent.get(what) == state:
            return
        # It would fail again and keep the later results waiting.
        with runs.refusals.passing(what):
            send()
        self._sent[what] = state

    def _committed_names(self) -> set[str]:
        """The names that look committed. The requests are cheap: they are made at every poll."""
        parsed = map(CheckpointName.parse, self._folder.store.names(CHECKPOINTS))
        sent = self._commits or set()
        return {
            str(name)
            for name in parsed
            if name and (str(name) in sent or self._folder.exists_checkpoint(name))
        }


def show_training(runs: MlflowRuns) -> bool:
    """Send the entries that the newest checkpoint covers; return whether the training is done."""
    checkpoints, stage = runs.folder.checkpoints(), runs.training
    is_finished = bool(checkpoints) and checkpoints[-1].manifest.is_last
    if not is_finished:
        runs.set_status(stage, "RUNNING")
    if not checkpoints:
        return False
    newest, store = checkpoints[-1].manifest, runs.folder.store
    position = runs.mirrored()
    since = min(position.step, runs.counters.position.step)
    segments = [file for file in newest.journal if _last_step(file.name) >= since]
    runs.log_entries(read_good_segments(store, segments, is_final=is_finished), position)
    run_id = runs.run_id(stage)
    listed = [runs.folder.summary(checkpoint).model_dump(mode="json") for checkpoint in checkpoints]
    runs.client.log_dict(run_id, {"checkpoints": listed}, "checkpoints.json")
    if quarantined := runs.folder.quarantined():
        runs.set_tags(stage, {"evertrain.quarantined": ", ".join(sorted(quarantined))})
        runs.client.log_dict(run_id, quarantined, "quarantined.json")
    if is_finished:
        show_curves(runs, checkpoints[-1])
        if stage == "train":
            runs.set_status(stage, EndStatus.FINISHED)
    with runs.refusals.passing("the models of the checkpoints"):
        sync_models(runs, checkpoints, is_finished=is_finished)
    return is_finished


def show_evaluation(runs: MlflowRuns, result: EvaluationResult) -> None:
    """Show the metrics of a checkpoint at its step, and its confusion matrix if it has one."""
    config, store = runs.record.config, Store(result.uri)
    manifest, _ = read_manifest(store, EvaluationManifest)
    log_evaluation(runs, result, manifest.created_at)
    for file in (file for file in manifest.files if file.name == CONFUSION_MATRIX_JSON):
        data = read_file(store, file.name, file)
        found = parse_json(data, f"{store.uri(file.name)} is not JSON")
        class_names = workload_class(config.workload).class_names if config.has_workload else ()
        names = class_names or [str(label) for label in found["labels"]]
        title = f"{result.split}, step {result.checkpoint.step}"
        figure = figures.confusion_matrix(found["counts"], names, title)
        place = f"confusion_matrix/{result.split}-{result.checkpoint.name}.png"
        runs.client.log_figure(runs.run_id("evaluate"), figure, place)


def show_predictions(runs: MlflowRuns, result: PredictionsResult) -> None:
    """Show the predictions' address, checkpoint, input and number.

    Each batch inference has a file of its own; the tags and predictions.json are of the newest.
    """
    key = f"{PREDICTIONS}/{result.uri.rpartition('/')[2]}"
    manifest = open_result(runs.folder.store, PredictionsManifest, key)
    if result.input_digest:
        name = f"{runs.record.config.workload.rpartition(':')[2]}-infer"
        runs.log_input("infer", name, result.input_digest, result.source)
    infer, facts = runs.run_id("infer"), hide_secrets(result.model_dump(mode="json"))
    runs.client.log_dict(infer, facts, f"predictions/{result.uri.rpartition('/')[2]}.json")
    newest = runs.tag("infer", _PREDICTIONS_OF)
    if not newest or seconds(newest) <= seconds(manifest.created_at):
        runs.client.log_dict(infer, facts, "predictions.json")
        runs.set_tags(
            "infer",
            {
                "evertrain.predictions": result.uri,
                "evertrain.checkpoint": result.checkpoint.uri,
                "evertrain.num_rows": str(result.num_rows),
                _PREDICTIONS_OF: manifest.created_at,
            },
        )
    runs.set_status("infer", EndStatus.FINISHED)


def show_outcome(runs: MlflowRuns, outcome: Outcome) -> None:
    """Show the outcome on the parent run, so that a table of runs shows which is best, and why.

    Where the parent has the training's curves, they go on after the best checkpoint: its metrics
    have names of their own.
    """
    best = outcome.best
    created_s = seconds(runs.folder.find(best.name).manifest.created_at)
    values = headline(runs, best, outcome.test_metrics)
    if runs.training == "train":
        runs.log_metrics("pipeline", values, step=best.step, time_s=created_s)
    else:
        runs.log_final_values(of_best(values), step=best.step, time_s=created_s)
    runs.set_tags("pipeline", {"evertrain.best_checkpoint": best.uri})
    runs.describe()


def headline(
    runs: MlflowRuns, best: CheckpointSummary, test_metrics: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The best checkpoint's validation metrics, the monitored one, and the test metrics.

    Of a training function, they are all that it reported with the checkpoint, too.
    """
    if runs.record.config.is_function:
        return best.metrics | full_names(TEST, test_metrics)
    monitor = runs.record.config.monitor
    chosen = {
        key: value
        for key, value in best.metrics.items()
        if key == monitor or is_of(VALIDATION, key)
    }
    return chosen | full_names(TEST, test_metrics)


def of_best(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """The headline by names that no curve has."""
    return {
        key if is_of(TEST, key) else full_name(BEST, key): value for key, value in values.items()
    }


def _last_step(segment: str) -> int:
    name = SegmentName.parse(segment)
    if name is None:
        raise CheckpointError(f"{segment!r} is not the name of a journal segment")
    return name.last_step


def _place(uri: str) -> str:
    """Where an evaluation lies below all of its run's, wherever that lies."""
    return "/".join(uri.rstrip("/").split("/")[-2:])
