"""The kept checkpoints of a run as LoggedModels, each with its metrics on the data they are of.

MLflow's search ranks them as `select` does. A model refers to its checkpoint; `logged.py` copies
weights. Where retention deletes a checkpoint, its model is deleted in MLflow when the run is
mirrored next, unless a registered version points to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from mlflow.entities import LoggedModel, LoggedModelStatus

from train_core.engine.tracking.client_settings import ONE_QUESTION
from train_core.engine.tracking.description.datasets import dataset_id
from train_core.engine.tracking.existing_mlflow_runs import has_run
from train_core.engine.tracking.mlflow_runs import MlflowRuns, seconds
from train_core.engine.tracking.mlflow_server import all_pages
from train_core.engine.tracking.models.lookups import (
    CHECKPOINT_TAG,
    DIGEST_TAG,
    WEIGHTS_TAG,
    is_copied,
    registered_models,
)
from train_core.engine.tracking.send_metrics import ModelLink, Naming
from train_core.errors import CheckpointError
from train_core.policy.end_status import EndStatus
from train_core.policy.metric_names import TEST, VALIDATION, full_names, only
from train_core.results import EvaluationResult
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import Commit, RunFolder

REFERENCED = "referenced"
"""The weights of a model are in its checkpoint only."""


def known_models(runs: MlflowRuns) -> dict[str, LoggedModel]:
    """The run's models by their checkpoints' digests; MLflow is asked once."""
    if runs.known_models is None:
        filter_string = f"source_run_id = '{runs.run_id('pipeline')}'"
        asked = [runs.experiment_id], filter_string
        found = all_pages(partial(runs.client.search_logged_models, *asked))
        runs.known_models = {
            model.tags[DIGEST_TAG]: model for model in found if DIGEST_TAG in model.tags
        }
    return runs.known_models


def model_of(runs: MlflowRuns, checkpoint: Commit) -> LoggedModel:
    """The checkpoint's model, which is created once, as one that refers to it."""
    known = known_models(runs)
    model = known.get(checkpoint.digest)
    if model is None:
        model = _create(runs, checkpoint)
    if model.status != LoggedModelStatus.READY:
        if WEIGHTS_TAG not in model.tags:
            # An earlier version of evertrain did not come to copy all of it.
            runs.client.set_logged_model_tags(model.model_id, {WEIGHTS_TAG: REFERENCED})
        model = runs.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    known[checkpoint.digest] = model
    return model


def log_evaluation(runs: MlflowRuns, result: EvaluationResult, created_at: str) -> None:
    """Log the metrics of a checkpoint on a split, also for its model if the checkpoint is there.

    Those on the test split are values that the run ends with; the others are in `evaluate`, at the
    checkpoint's step. What the model has already is not logged again.
    """
    values, model = full_names(result.split, result.metrics), None
    name = CheckpointName.parse(result.checkpoint.name)
    passing = runs.refusals.passing(f"the model of {result.checkpoint.name}")
    with passing, suppress(FileNotFoundError, CheckpointError):
        model = model_of(runs, runs.folder.checkpoint(name)) if name else None
    link = _link(runs, model, result.split) if model else None
    step, time_s = result.checkpoint.step, seconds(created_at)
    if result.split == TEST and runs.training == "pipeline":
        runs.log_final_values(values, step=step, time_s=time_s, link=link)
    else:
        new = _lacking(model, values, runs.naming)
        runs.log_metrics("evaluate", new, step=step, time_s=time_s, link=link)


def sync_models(runs: MlflowRuns, checkpoints: Sequence[Commit], *, is_finished: bool) -> None:
    """Create the models of the kept checkpoints, and delete those of deleted ones.

    `checkpoints` are those that are there, oldest first. While the training goes on, one without a
    validation gets no model: most of them are soon deleted.
    """
    for checkpoint in _with_weights(checkpoints):
        if is_finished or checkpoint.manifest.validated or checkpoint.manifest.reported:
            model_of(runs, checkpoint)
    kept = {checkpoint.digest for checkpoint in checkpoints}
    gone = {
        digest: model
        for digest, model in known_models(runs).items()
        if digest not in kept and not _is_there(runs.folder, model)
    }
    copied = [model for model in gone.values() if is_copied(model)]
    # A version that somebody registered serves although its checkpoint is gone.
    registered = registered_models(runs.client) if copied else set()
    for digest, model in gone.items():
        if model.model_id not in registered:
            runs.client.delete_logged_model(model.model_id)
        # One that stays is not looked at again by this process.
        del known_models(runs)[digest]


def log_measured(runs: MlflowRuns, checkpoints: Sequence[Commit]) -> None:
    """Give models the metrics that were measured while training and that no evaluation gave them.

    A model that has a metric of a name gets no second one: an evaluation's has the same value.
    """
    runs.known_models = None
    is_function, logged = runs.record.config.is_function, False
    for checkpoint in _with_weights(checkpoints):
        if not (checkpoint.manifest.validated or is_function):
            continue
        model = model_of(runs, checkpoint)
        values = checkpoint.metrics if is_function else only(VALIDATION, checkpoint.metrics)
        numbers = {name: value for name, value in values.items() if value is not None}
        new = _lacking(model, numbers, runs.naming)
        link = _link(runs, model, "" if is_function else VALIDATION)
        created_s = seconds(checkpoint.manifest.created_at)
        runs.log_metrics("evaluate", new, step=checkpoint.step, time_s=created_s, link=link)
        logged = logged or bool(new)
    if logged:
        runs.set_status("evaluate", EndStatus.FINISHED)


def forget_deleted(run_url: str, tracking_uri: str) -> None:
    """Delete the models of checkpoints that are not in the run's folder any more."""
    ONE_QUESTION.apply()
    folder = RunFolder.at(run_url)
    experiment = folder.record().requested.experiment
    if not has_run(folder, tracking_uri, experiment):
        return
    runs = MlflowRuns(folder, tracking_uri, experiment, is_live=False)
    sync_models(runs, folder.checkpoints(), is_finished=False)


def _with_weights(checkpoints: Sequence[Commit]) -> list[Commit]:
    """Without the one that stands for the end of a training function, which has no files."""
    return [one for one in checkpoints if not one.manifest.is_function_end]


def _link(runs: MlflowRuns, model: LoggedModel, split: str) -> ModelLink:
    """What links metrics to the model, and to the split's data if the run has recorded them."""
    is_known = split in runs.record.datasets
    return ModelLink(model.model_id, *(dataset_id(runs.record, split) if is_known else ()))


def _create(runs: MlflowRuns, checkpoint: Commit) -> LoggedModel:
    manifest = checkpoint.manifest
    facts = {"step": manifest.step, "epoch": manifest.epoch, "samples_seen": manifest.samples_seen}
    return runs.client.create_logged_model(
        runs.experiment_id,
        name=f"{runs.record.config.workload.rpartition(':')[2]}-{checkpoint.name}",
        source_run_id=runs.run_id("pipeline"),
        params={key: str(value) for key, value in facts.items()},
        tags={
            DIGEST_TAG: checkpoint.digest,
            CHECKPOINT_TAG: runs.folder.store.uri(checkpoint.key),
            WEIGHTS_TAG: REFERENCED,
        },
    )


def _is_there(folder: RunFolder, model: LoggedModel) -> bool:
    """Whether the checkpoint is there, though it may be damaged."""
    name = CheckpointName.parse(model.tags.get(CHECKPOINT_TAG, "").rpartition("/")[2])
    return name is not None and folder.exists_checkpoint(name)


def _lacking(
    model: LoggedModel | None, values: Mapping[str, float | None], naming: Naming
) -> Mapping[str, float | None]:
    """The metrics that the model does not have."""
    has = {metric.key for metric in model.metrics or []} if model else set()
    return {name: value for name, value in values.items() if naming(name) not in has}
