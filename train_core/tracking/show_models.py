"""The kept checkpoints of a run as models, each with its metrics on the data they are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from train_core.config import FunctionTraining
from train_core.policy.metric_names import VALIDATION, only
from train_core.results import CheckpointSummary, ModelVersion
from train_core.storage.committed import with_files
from train_core.storage.coordination.pins import MLFLOW_MODEL, pin
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import Commit
from train_core.tracking.description.datasets import data_of_split
from train_core.tracking.journal_points import points_of, seconds
from train_core.tracking.shown_run import ShownRun
from train_core.tracking.tracker import Measured, Points, TrackedModel


def show_models(shown: ShownRun, checkpoints: Sequence[Commit], *, is_finished: bool) -> None:
    """Show the kept checkpoints as models, and no deleted one.

    `checkpoints` are those that are there, oldest first. While the training goes on, one
    without a validation gets no model: most of them are soon deleted.
    """
    for checkpoint in with_files(checkpoints):
        if is_finished or checkpoint.manifest.validated or checkpoint.manifest.reported:
            shown.tracker.model(_model_of(shown, checkpoint))
    shown.tracker.retain_models([one.digest for one in checkpoints], partial(_is_there, shown))


@dataclass(frozen=True)
class Completed:
    """What became of the models of a run that has its outcome."""

    has_metrics: bool
    """Whether models have metrics that were measured while training."""
    best_uri: str
    """The address of the best checkpoint's model; empty if it does not load."""


def complete_models(shown: ShownRun, best: CheckpointSummary, *, is_finished: bool) -> Completed:
    """Complete the models of the kept checkpoints, and copy the weights that the run wants.

    Only a predictor knows what is in a folder that a training function reported: without one, a
    model refers to it.
    """
    checkpoints, asked = shown.folder.checkpoints(), shown.folder.newest_request()
    has_metrics, uri = False, ""
    with shown.refusals.passing("the models of the checkpoints"):
        show_models(shown, checkpoints, is_finished=is_finished)
        has_metrics = _show_measured(shown, checkpoints)
    wanted = asked.requested.mirror_weights if asked.config.has_workload else "none"
    if wanted != "none":
        with shown.refusals.passing(_weights_of(best.name)):
            uri = _copy_weights(shown, shown.folder.find(best.name))
    for checkpoint in checkpoints if wanted == "kept" else ():
        with shown.refusals.passing(_weights_of(str(checkpoint.name))):
            _copy_weights(shown, checkpoint)
    return Completed(has_metrics, uri)


def complete_version(shown: ShownRun, version: ModelVersion) -> str:
    """Show a version's model, with a copy of the weights if the run wants any; its digest.

    Empty if the tracker takes no such model.
    """
    checkpoint, asked = shown.folder.find(version.checkpoint), shown.folder.newest_request()
    is_refused = _weights_of(version.checkpoint) in shown.refusals.parts
    wants = asked.requested.mirror_weights != "none" and asked.config.has_workload
    if wants and not is_refused:
        with shown.refusals.passing(_weights_of(version.checkpoint)):
            _copy_weights(shown, checkpoint)
    digest = ""
    with shown.refusals.passing(f"the model of {version.checkpoint}"):
        shown.tracker.model(_model_of(shown, checkpoint))
        digest = checkpoint.digest
    return digest  # noqa: RET504 (the block may end without a value)


def measured(shown: ShownRun, checkpoint: Commit, split: str) -> Measured:
    """The checkpoint's model, which is shown, and the split's data if they are recorded."""
    shown.tracker.model(_model_of(shown, checkpoint))
    record = shown.record
    data = data_of_split(record, split) if split in record.datasets else None
    return Measured(checkpoint.digest, data)


def _show_measured(shown: ShownRun, checkpoints: Sequence[Commit]) -> bool:
    """Give models the metrics that were measured while training.

    A model that has a metric of a name gets no second one: an evaluation's has the same value.
    Returns whether there are any.
    """
    has_metrics = False
    is_reported = isinstance(shown.record.config.trainable, FunctionTraining)
    for checkpoint in with_files(checkpoints):
        if not (checkpoint.manifest.validated or is_reported):
            continue
        of = measured(shown, checkpoint, "" if is_reported else VALIDATION)
        values = checkpoint.metrics if is_reported else only(VALIDATION, checkpoint.metrics)
        numbers = {name: value for name, value in values.items() if value is not None}
        created_s = seconds(checkpoint.manifest.created_at)
        points = points_of(numbers, checkpoint.step, created_s)
        shown.tracker.metrics("evaluate", [Points(points)], of)
        has_metrics = has_metrics or bool(points)
    return has_metrics


def _copy_weights(shown: ShownRun, checkpoint: Commit) -> str:
    """Let the checkpoint's model load and serve; its address."""
    from train_core.tracking.mlflow.models.files import model_files

    # The pin comes before the copy, which somebody may register and give an alias at once.
    why = "its model is in MLflow"
    pin(shown.folder.store, checkpoint.name, MLFLOW_MODEL, why, is_lasting=True)
    files = model_files(shown.folder, shown.record, checkpoint, shown.config)
    return shown.tracker.model(_model_of(shown, checkpoint), files)


def _model_of(shown: ShownRun, checkpoint: Commit) -> TrackedModel:
    manifest, workload = checkpoint.manifest, shown.record.config.workload
    facts = {
        "step": manifest.step,
        "epoch": manifest.epoch,
        "samples_seen": manifest.samples_seen,
    }
    return TrackedModel(
        name=f"{workload.rpartition(':')[2]}-{checkpoint.name}",
        digest=checkpoint.digest,
        checkpoint=shown.folder.store.uri(checkpoint.key),
        step=checkpoint.step,
        parameters={key: str(value) for key, value in facts.items()},
    )


def _is_there(shown: ShownRun, address: str) -> bool:
    """Whether the checkpoint is there, though it may be damaged."""
    name = CheckpointName.parse(address.rpartition("/")[2])
    return name is not None and shown.folder.exists_checkpoint(name)


def _weights_of(checkpoint: str) -> str:
    """What is refused where the tracker takes no copy of the checkpoint's weights."""
    return f"the weights of {checkpoint}"
