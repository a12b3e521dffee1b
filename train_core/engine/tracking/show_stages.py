"""The functions that show each stage of a run in MLflow, as the run folder records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from train_core.engine.metrics import figures
from train_core.engine.tracking.description.note import Outcome
from train_core.engine.tracking.mlflow_runs import MlflowRuns, seconds
from train_core.engine.tracking.models.kept import log_evaluation, sync_models
from train_core.engine.tracking.pictures import show_curves
from train_core.errors import CheckpointError
from train_core.loading import workload_class
from train_core.policy.end_status import EndStatus
from train_core.policy.logins import hide_secrets
from train_core.policy.metric_names import BEST, TEST, VALIDATION, full_name, full_names, is_of
from train_core.results import CheckpointSummary, EvaluationResult, PredictionsResult
from train_core.storage.committed import open_result
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import parse_json
from train_core.storage.records.journal import read_good_segments
from train_core.storage.records.manifest import (
    EvaluationManifest,
    PredictionsManifest,
    read_manifest,
)
from train_core.storage.records.names import CONFUSION_MATRIX_JSON, PREDICTIONS, SegmentName
from train_core.storage.records.verified_files import read_file

_PREDICTIONS_OF = "evertrain.predictions_created"


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


def show_evaluations(runs: MlflowRuns, results: Sequence[EvaluationResult]) -> None:
    """Show the metrics of each checkpoint at its step, and its confusion matrix if it has one."""
    config = runs.record.config
    class_names = workload_class(config.workload).class_names if config.has_workload else ()
    for result in results:
        store, step = Store(result.uri), result.checkpoint.step
        manifest, _ = read_manifest(store, EvaluationManifest)
        log_evaluation(runs, result, manifest.created_at)
        for file in (file for file in manifest.files if file.name == CONFUSION_MATRIX_JSON):
            data = read_file(store, file.name, file)
            found = parse_json(data, f"{store.uri(file.name)} is not JSON")
            names = class_names or [str(label) for label in found["labels"]]
            title = f"{result.split}, step {step}"
            figure = figures.confusion_matrix(found["counts"], names, title)
            place = f"confusion_matrix/{result.split}-{result.checkpoint.name}.png"
            runs.client.log_figure(runs.run_id("evaluate"), figure, place)
    runs.set_status("evaluate", EndStatus.FINISHED)


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
    runs.describe(outcome)


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
