"""The results of a run in a tracker: evaluations, the outcome, decisions and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from train_core.champion.log import ModelLog
from train_core.config import FunctionTraining
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
)
from train_core.storage.committed import open_result
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import (
    EvaluationManifest,
    PredictionsManifest,
    read_manifest,
)
from train_core.storage.records.names import PREDICTIONS, CheckpointName
from train_core.storage.records.run_record import RunRecord
from train_core.tracking.description.datasets import data_of_predictions
from train_core.tracking.description.note import Outcome
from train_core.tracking.journal_points import points_of, seconds
from train_core.tracking.show_models import complete_version, measured
from train_core.tracking.shown_run import ShownRun
from train_core.tracking.tracker import GATE_TAG, Points

_PREDICTIONS_OF = "evertrain.predictions_created"
_FIGURES_OF = "evertrain.figures_of"
"""The evaluation whose figures were drawn."""


def show_evaluation(shown: ShownRun, result: EvaluationResult) -> None:
    """Show the metrics of a checkpoint at its step, and its confusion matrix if it has one.

    Those on the test split are values that the run ends with.
    """
    from train_core.tracking.pictures import confusion_picture

    manifest, _ = read_manifest(Store(result.uri), EvaluationManifest)
    of, name = None, CheckpointName.parse(result.checkpoint.name)
    passing = shown.refusals.passing(f"the model of {result.checkpoint.name}")
    with passing, suppress(FileNotFoundError, CheckpointError):
        if name:
            of = measured(shown, shown.folder.checkpoint(name), result.split)
    values = full_names(result.split, result.metrics)
    points = points_of(values, result.checkpoint.step, seconds(manifest.created_at))
    is_final = result.split == TEST
    shown.tracker.metrics("evaluate", [Points(points)], of, is_final=is_final)
    config = shown.record.config
    class_names = workload_class(config.workload).class_names if config.has_workload else ()
    for path, content in confusion_picture(result, class_names):
        shown.tracker.artifact("evaluate", path, content)


def show_figures(shown: ShownRun, result: EvaluationResult) -> None:
    """Draw what an evaluation's predictions were like, in the run that people tick, once."""
    from train_core.tracking.pictures import score_pictures

    if shown.open("pipeline").tags.get(_FIGURES_OF) != result.uri:
        config = shown.config or shown.record.config
        figures = score_pictures(shown.folder, result, config)
        shown.keep_figures("pipeline", figures, {_FIGURES_OF: result.uri})


def show_outcome(shown: ShownRun, outcome: Outcome) -> None:
    """Show the outcome on the run itself, so that a table of runs shows which is best, and why.

    The training's curves go on after the best checkpoint: its metrics have names of their own.
    """
    best = outcome.best
    if best is None:
        return
    created_s = seconds(shown.folder.find(best.name).manifest.created_at)
    values = _of_best(_headline(shown.record, best, outcome.test_metrics))
    points = Points(points_of(values, best.step, created_s))
    shown.tracker.metrics("pipeline", [points], is_final=True)
    shown.tracker.tags("pipeline", {"evertrain.best_checkpoint": best.uri})


def show_gate(shown: ShownRun, result: GateResult) -> None:
    """Show a decision in its run and on its version, and set the aliases."""
    from train_core.rank.metrics import figures
    from train_core.rank.metrics.gate_figures import champion_and_challenger

    challenger = result.decision.challenger
    shown.tracker.tags("pipeline", {GATE_TAG: result.summary})
    shown.keep_json("pipeline", "gate/decision.json", result.model_dump(mode="json"))
    figure = None
    with shown.refusals.passing("the figure of champion and challenger"):
        figure = champion_and_challenger(result)
    if figure is not None:
        path = "gate/champion_and_challenger.png"
        shown.tracker.artifact("pipeline", path, figures.png(figure))
    log = ModelLog(shown.folder.storage, challenger.model)
    shown.tracker.version(result, log, partial(complete_version, shown, challenger))


def show_predictions(shown: ShownRun, result: PredictionsResult) -> None:
    """Show the predictions' address, checkpoint, input and number.

    Each batch inference has a file of its own; the tags and predictions.json are of the newest.
    """
    name = result.uri.rpartition("/")[2]
    manifest = open_result(shown.folder.store, PredictionsManifest, f"{PREDICTIONS}/{name}")
    known = shown.open("infer").tags
    if data := data_of_predictions(shown.record, result):
        shown.tracker.parameters("infer", {}, data)
    facts = hide_secrets(result.model_dump(mode="json"))
    shown.keep_json("infer", f"predictions/{name}.json", facts)
    newest = known.get(_PREDICTIONS_OF)
    if not newest or seconds(newest) <= seconds(manifest.created_at):
        shown.keep_json("infer", "predictions.json", facts)
        tags = {
            "evertrain.predictions": result.uri,
            "evertrain.checkpoint": result.checkpoint.uri,
            "evertrain.num_rows": str(result.num_rows),
            _PREDICTIONS_OF: manifest.created_at,
        }
        shown.tracker.tags("infer", tags)
    shown.close("infer", EndStatus.FINISHED)


def _headline(
    record: RunRecord, best: CheckpointSummary, test_metrics: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The best checkpoint's validation metrics, the monitored one, and the test metrics.

    Of a training function, they are all that it reported with the checkpoint, too.
    """
    tested = full_names(TEST, test_metrics)
    if isinstance(record.config.trainable, FunctionTraining):
        return best.metrics | tested
    monitor = record.config.monitor
    chosen = {
        key: value
        for key, value in best.metrics.items()
        if key == monitor or is_of(VALIDATION, key)
    }
    return chosen | tested


def _of_best(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """The headline by names that no curve has."""
    return {
        key if is_of(TEST, key) else full_name(BEST, key): value for key, value in values.items()
    }
