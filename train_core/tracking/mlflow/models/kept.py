"""The kept checkpoints of a run as LoggedModels, each with its metrics on the data they are of.

MLflow's search ranks them as `select` does. A model refers to its checkpoint; `logged.py` copies
weights. Where retention deletes a checkpoint, its model is deleted in MLflow when the run is
mirrored next, unless a registered version points to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from mlflow.entities import LoggedModel, LoggedModelStatus

from train_core.tracking.mlflow.models.lookups import (
    CHECKPOINT_TAG,
    DIGEST_TAG,
    WEIGHTS_TAG,
    is_copied,
    registered_models,
)
from train_core.tracking.mlflow.runs import MlflowRuns
from train_core.tracking.mlflow.send_metrics import ModelLink
from train_core.tracking.mlflow.server import all_pages
from train_core.tracking.tracker import Measured, Point, TrackedModel

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


def model_of(runs: MlflowRuns, shown: TrackedModel) -> LoggedModel:
    """The checkpoint's model, which is created once, as one that refers to it."""
    known = known_models(runs)
    model = known.get(shown.digest)
    if model is None:
        model = _create(runs, shown)
    if model.status != LoggedModelStatus.READY:
        if WEIGHTS_TAG not in model.tags:
            # An earlier version of evertrain did not come to copy all of it.
            runs.client.set_logged_model_tags(model.model_id, {WEIGHTS_TAG: REFERENCED})
        model = runs.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    known[shown.digest] = model
    return model


def link_of(runs: MlflowRuns, of: Measured) -> ModelLink | None:
    """What links metrics to the model, and to the data; None: MLflow has no such model."""
    model = known_models(runs).get(of.model)
    if model is None:
        return None
    data = (of.data.name, runs.digest_of(of.data)) if of.data else ()
    return ModelLink(model.model_id, *data)


def lacking(
    runs: MlflowRuns, of: Measured | None, points: Iterable[Point]
) -> tuple[list[Point], list[Point]]:
    """The points of metrics that the model does not have, and those it has of a deleted run."""
    model = known_models(runs).get(of.model) if of else None
    run_of = {metric.key: metric.run_id for metric in model.metrics or []} if model else {}
    there = {runs.run_id("pipeline"), runs.run_id("evaluate"), runs.run_id(runs.training), None}
    given = {name for digest, name in runs.measured if of and digest == of.model}
    new = [one for one in points if one.name not in given]
    named = [(one, runs.naming(one.name)) for one in new]
    return (
        [one for one, key in named if key not in run_of],
        [one for one, key in named if run_of.get(key) not in there],
    )


def delete_gone(runs: MlflowRuns, kept: Sequence[str], is_there: Callable[[str], bool]) -> None:
    """Delete the models of deleted checkpoints, unless a registered version points to them."""
    gone = {
        digest: model
        for digest, model in known_models(runs).items()
        if digest not in kept and not is_there(model.tags.get(CHECKPOINT_TAG, ""))
    }
    copied = [model for model in gone.values() if is_copied(model)]
    # A version that somebody registered serves although its checkpoint is gone.
    registered = registered_models(runs.client) if copied else set()
    for digest, model in gone.items():
        if model.model_id not in registered:
            runs.client.delete_logged_model(model.model_id)
        # One that stays is not looked at again by this process.
        del known_models(runs)[digest]


def _create(runs: MlflowRuns, shown: TrackedModel) -> LoggedModel:
    return runs.client.create_logged_model(
        runs.experiment_id,
        name=shown.name,
        source_run_id=runs.run_id("pipeline"),
        params=dict(shown.parameters),
        tags={
            DIGEST_TAG: shown.digest,
            CHECKPOINT_TAG: shown.checkpoint,
            WEIGHTS_TAG: REFERENCED,
        },
    )
