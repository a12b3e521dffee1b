"""The functions that show each stage of a run in MLflow, as the run folder records it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from train_core.engine.metrics import figures
from train_core.engine.tracking.runs import MlflowRuns, seconds
from train_core.errors import CheckpointError
from train_core.loading import workload_class
from train_core.policy.end_status import EndStatus
from train_core.policy.metric_names import TEST, VALIDATION, full_names, is_of
from train_core.results import CheckpointSummary, EvaluationResult, PredictionsResult
from train_core.storage.objects.store import Store
from train_core.storage.records.journal import read_good_segments
from train_core.storage.records.manifest import (
    EvaluationManifest,
    PredictionsManifest,
    read_manifest,
)
from train_core.storage.records.names import CONFUSION_MATRIX_JSON, CURVES_PNG, SegmentName
from train_core.storage.records.verified_files import read_file

_PREDICTIONS_OF = "evertrain.predictions_created"


def show_training(runs: MlflowRuns) -> bool:
    """Send the entries that the newest checkpoint covers; return whether the training is done."""
    checkpoints = runs.folder.checkpoints()
    is_finished = bool(checkpoints) and checkpoints[-1].manifest.is_last
    if not is_finished:
        runs.set_status("train", "RUNNING")
    if not checkpoints:
        return False
    newest, store = checkpoints[-1].manifest, runs.folder.store
    position = runs.mirrored()
    segments = [file for file in newest.journal if _last_step(file.name) >= position.step]
    runs.log_entries(read_good_segments(store, segments, is_final=is_finished), position)
    listed = [runs.folder.summary(checkpoint).model_dump(mode="json") for checkpoint in checkpoints]
    runs.client.log_dict(runs.run_id("train"), {"checkpoints": listed}, "checkpoints.json")
    if quarantined := runs.folder.quarantined():
        runs.set_tags("train", {"evertrain.quarantined": ", ".join(sorted(quarantined))})
        runs.client.log_dict(runs.run_id("train"), quarantined, "quarantined.json")
    if is_finished and runs.status("train") != EndStatus.FINISHED:
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder, CURVES_PNG)
            picture.write_bytes(figures.curves_until(checkpoints[-1], store))
            runs.client.log_artifact(runs.run_id("train"), str(picture))
        runs.set_status("train", EndStatus.FINISHED)
    return is_finished


def show_evaluations(runs: MlflowRuns, results: Sequence[EvaluationResult]) -> None:
    """Show the metrics of each checkpoint at its step, and its confusion matrix if it has one."""
    config = runs.record.config
    class_names = workload_class(config.workload).class_names if config.has_workload else ()
    for result in results:
        store, step = Store(result.uri), result.checkpoint.step
        manifest, _ = read_manifest(store, EvaluationManifest)
        metrics = full_names(result.split, result.metrics)
        runs.log_metrics("evaluate", metrics, step=step, time_s=seconds(manifest.created_at))
        for file in (file for file in manifest.files if file.name == CONFUSION_MATRIX_JSON):
            found = json.loads(bytes(read_file(store, file.name, file)))
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
    manifest, _ = read_manifest(Store(result.uri), PredictionsManifest)
    rows = {"num_rows": float(result.num_rows)}
    runs.log_metrics("infer", rows, step=manifest.step, time_s=seconds(manifest.created_at))
    if result.input_digest:
        name = f"{runs.record.config.workload.rpartition(':')[2]}-infer"
        runs.log_input("infer", name, result.input_digest, result.source)
    infer, facts = runs.run_id("infer"), result.model_dump(mode="json")
    runs.client.log_dict(infer, facts, f"predictions/{result.uri.rpartition('/')[2]}.json")
    newest = runs.tag("infer", _PREDICTIONS_OF)
    if not newest or seconds(newest) <= seconds(manifest.created_at):
        runs.client.log_dict(infer, facts, "predictions.json")
        runs.set_tags(
            "infer",
            {
                "evertrain.predictions": result.uri,
                "evertrain.checkpoint": result.checkpoint.uri,
                _PREDICTIONS_OF: manifest.created_at,
            },
        )
    runs.set_status("infer", EndStatus.FINISHED)


def show_outcome(
    runs: MlflowRuns, best: CheckpointSummary, test_metrics: dict[str, float | None]
) -> None:
    """Show the headline on the parent run, so that a table of runs shows which is best."""
    checkpoint = runs.folder.find(best.name)
    runs.log_metrics(
        "pipeline",
        headline(runs, best, test_metrics),
        step=best.step,
        time_s=seconds(checkpoint.manifest.created_at),
    )
    runs.set_tags("pipeline", {"evertrain.best_checkpoint": best.uri})


def headline(
    runs: MlflowRuns, best: CheckpointSummary, test_metrics: dict[str, float | None]
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


def _last_step(segment: str) -> int:
    name = SegmentName.parse(segment)
    if name is None:
        raise CheckpointError(f"{segment!r} is not the name of a journal segment")
    return name.last_step
