"""A checkpoint's model in MLflow, which anyone can load or serve. No part of it is a pickle."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import numpy.typing as npt
import pandas as pd
import safetensors.torch
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus
from mlflow.models import Model, ModelSignature, infer_signature

from train_core.config import TrainConfig
from train_core.engine.checkpoint.reader import load_weights
from train_core.engine.data.recorded import load_recorded
from train_core.engine.tracking import serving
from train_core.engine.tracking.models.code import code_paths, requirements
from train_core.engine.tracking.models.lookups import CHECKPOINT_TAG, DIGEST_TAG
from train_core.engine.tracking.runs import MlflowRuns, seconds
from train_core.engine.tracking.stage_runs import headline
from train_core.results import CheckpointSummary
from train_core.storage.coordination.pins import MLFLOW_MODEL, pin
from train_core.storage.records.names import MODEL_FILE
from train_core.storage.run_folder import Checkpoint


def log_checkpoint_model(
    runs: MlflowRuns,
    best: CheckpointSummary,
    test_metrics: dict[str, float | None],
    config: TrainConfig | None = None,
) -> str:
    """Log a checkpoint's model as a LoggedModel of the parent run, with metrics; return its URI.

    A checkpoint is logged once: a model that exists is used again, an unfinished one is completed.
    `config` has logins that the example's data may need and that run.json does not record.
    Raises CheckpointError if the weights are not what was committed.
    """
    checkpoint = runs.folder.find(best.name)
    # The pin comes before the model, which somebody may register and give an alias at once.
    why = "its model is in MLflow"
    pin(runs.folder.store, checkpoint.name, MLFLOW_MODEL, why, is_lasting=True)
    model = _find(runs, checkpoint) or _create(runs, checkpoint)
    if model.status != LoggedModelStatus.READY:
        with tempfile.TemporaryDirectory() as folder:
            _save(runs, checkpoint, model, Path(folder), config or runs.record.config)
        runs.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    runs.log_metrics(
        "pipeline",
        headline(runs, best, test_metrics),
        step=best.step,
        time_s=seconds(checkpoint.manifest.created_at),
        model_id=model.model_id,
    )
    return f"models:/{model.model_id}"


def _find(runs: MlflowRuns, checkpoint: Checkpoint) -> LoggedModel | None:
    run_id = runs.run_id("pipeline")
    filter_string = f"tags.`{DIGEST_TAG}` = '{checkpoint.digest}' and source_run_id = '{run_id}'"
    found = runs.client.search_logged_models([runs.experiment_id], filter_string, max_results=1)
    return found[0] if found else None


def _create(runs: MlflowRuns, checkpoint: Checkpoint) -> LoggedModel:
    manifest = checkpoint.manifest
    facts = {"step": manifest.step, "epoch": manifest.epoch, "samples_seen": manifest.samples_seen}
    return runs.client.create_logged_model(
        runs.experiment_id,
        name=runs.record.config.workload.rpartition(":")[2],
        source_run_id=runs.run_id("pipeline"),
        params={key: str(value) for key, value in facts.items()},
        tags={
            DIGEST_TAG: checkpoint.digest,
            CHECKPOINT_TAG: runs.folder.store.uri(checkpoint.key),
        },
    )


def _save(
    runs: MlflowRuns, checkpoint: Checkpoint, model: LoggedModel, folder: Path, asked: TrainConfig
) -> None:
    data = folder / "data"
    data.mkdir()
    weights = load_weights(runs.folder.store, checkpoint)
    # safetensors refuses tensors that share memory.
    own = {name: tensor.clone() for name, tensor in weights.items()}
    safetensors.torch.save_file(own, data / MODEL_FILE, {"format": "pt"})
    config = runs.record.config.model_copy(update={"runtime_env": {}})
    columns = load_recorded(runs.folder, asked).example()
    dtypes = {name: array.dtype.str for name, array in columns.items()}
    described = serving.Served(config=config, dtypes=dtypes)
    (data / serving.SERVED_FILE).write_text(described.model_dump_json(indent=1))
    served = serving.ServedModel(data)
    example = _example(columns)
    run_id = runs.run_id("pipeline")
    mlflow.pyfunc.save_model(
        folder / "model",
        loader_module=serving.__name__,
        data_path=str(data),
        code_paths=code_paths(served.workload),
        mlflow_model=Model(
            artifact_path=model.artifact_location,
            model_uuid=model.model_id,
            model_id=model.model_id,
            run_id=run_id,
        ),
        signature=_signature(example, served.predict(example)),
        input_example=example,
        pip_requirements=requirements(served.workload),
    )
    runs.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, checkpoint.step)])
    runs.client.log_model_artifacts(model.model_id, str(folder / "model"))


def _signature(example: Any, predicted: Any) -> ModelSignature:
    inputs = infer_signature(example).inputs
    with warnings.catch_warnings():
        # A predicted class is an integer and is never missing.
        warnings.filterwarnings("ignore", "Hint: Inferred schema contains integer column")
        return ModelSignature(inputs, infer_signature(example, predicted).outputs)


def _example(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]] | pd.DataFrame:
    """A table if every column is one-dimensional, else arrays by name."""
    if any(array.ndim != 1 for array in columns.values()):
        return dict(columns)
    # MLflow does not narrow the numbers of a table, and pandas reads JSON as these types.
    wide = {"f": np.float64, "i": np.int64, "u": np.int64}
    return pd.DataFrame(
        {
            name: array.astype(wide.get(array.dtype.kind, array.dtype))
            for name, array in columns.items()
        }
    )
