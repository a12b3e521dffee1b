"""A checkpoint's model in MLflow, which anyone can load or serve.

Nothing of ours in it is a pickle; what a training function reported may hold some.
"""

from __future__ import annotations

import base64
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import numpy.typing as npt
import pandas as pd
import safetensors.torch
from mlflow.entities import LoggedModel, LoggedModelOutput
from mlflow.models import Model, ModelSignature, infer_signature
from mlflow.types.schema import AnyType, ColSpec, Schema

from train_core.config import TrainConfig
from train_core.datasets.arrays import is_null
from train_core.engine.checkpoint.reader import read_model
from train_core.engine.data.fitted import FITTED_FILE
from train_core.engine.data.recorded_workload import load_recorded
from train_core.engine.tracking import serving
from train_core.engine.tracking.mlflow_runs import MlflowRuns
from train_core.engine.tracking.models.code import code_of
from train_core.engine.tracking.models.kept import known_models, model_of
from train_core.engine.tracking.models.lookups import COPIED, WEIGHTS_TAG, is_copied
from train_core.results import CheckpointSummary
from train_core.storage.coordination.pins import MLFLOW_MODEL, pin
from train_core.storage.objects.store import Store
from train_core.storage.records.names import MODEL_FILE
from train_core.storage.run_folder import Commit
from train_core.storage.verification.checkpoints import copy_files
from train_core.workload import Workload, recorded_forms

_log = logging.getLogger(__name__)


def copy_kept_models(
    runs: MlflowRuns, best: CheckpointSummary, config: TrainConfig | None = None
) -> str:
    """Copy weights into MLflow as `mirror_weights` says, the best first; the best model's URI.

    The URI is empty if the best weights are in their checkpoint only. What MLflow does not take,
    or what cannot be made a model, is told and left out.
    """
    asked = runs.folder.newest_request().requested.mirror_weights
    if asked == "none":
        return ""
    uri = ""
    with weights_left_out(runs, best.name):
        uri = copy_weights(runs, runs.folder.find(best.name), config)
    if asked == "kept":
        for checkpoint in runs.folder.checkpoints():
            with weights_left_out(runs, str(checkpoint.name)):
                copy_weights(runs, checkpoint, config)
    return uri


def weights_left_out(runs: MlflowRuns, checkpoint: str) -> AbstractContextManager[None]:
    """Go on without MLflow's copy of the weights if it takes none: the model refers to them."""
    return runs.refusals.passing(weights_of(checkpoint))


def weights_of(checkpoint: str) -> str:
    """What is refused where MLflow takes no copy of the checkpoint's weights."""
    return f"the weights of {checkpoint}"


def copy_weights(runs: MlflowRuns, checkpoint: Commit, config: TrainConfig | None = None) -> str:
    """Make the checkpoint's model one that loads and serves, with a copy of its weights; its URI.

    A checkpoint is copied once; a copy that was not finished is completed. `config` has logins that
    the example's data may need and that run.json does not record. Raises CheckpointError if the
    weights are not what was committed.
    """
    # The pin comes before the copy, which somebody may register and give an alias at once.
    why = "its model is in MLflow"
    pin(runs.folder.store, checkpoint.name, MLFLOW_MODEL, why, is_lasting=True)
    model = model_of(runs, checkpoint)
    # The predictor may be another one than the run began with.
    recorded = runs.folder.newest_request().config
    predictor = _of_predictor(recorded)
    if not (is_copied(model) and predictor.items() <= model.tags.items()):
        with tempfile.TemporaryDirectory() as folder:
            _save(runs, checkpoint, model, Path(folder), recorded, config or recorded)
        tags = {WEIGHTS_TAG: COPIED, **predictor}
        runs.client.set_logged_model_tags(model.model_id, tags)
        known_models(runs)[checkpoint.digest] = runs.client.get_logged_model(model.model_id)
    return f"models:/{model.model_id}"


def _of_predictor(config: TrainConfig) -> dict[str, str]:
    """The tags that say how a reported folder became a model."""
    if not config.is_function:
        return {}
    trusts = str(config.trust_pickle)
    return {"evertrain.predictor": config.predictor, "evertrain.trust_pickle": trusts}


def _save(
    runs: MlflowRuns,
    checkpoint: Commit,
    model: LoggedModel,
    folder: Path,
    recorded: TrainConfig,
    asked: TrainConfig,
) -> None:
    data = folder / "data"
    _copy_checkpoint(runs.folder.store, checkpoint, data)
    if (fitted := runs.folder.fitted_of(runs.record)) is not None:
        (data / FITTED_FILE).write_bytes(fitted)
    workload = load_recorded(runs.folder, asked)
    columns = _read_ones(workload, workload.example())
    described = serving.Served(
        config=recorded.model_copy(update={"runtime_env": {}}).without_logins(),
        dtypes={name: array.dtype.str for name, array in columns.items()},
        forms={name: form for name, form in recorded_forms(workload).items() if name in columns},
    )
    (data / serving.SERVED_FILE).write_text(described.model_dump_json(indent=1))
    served = serving.ServedModel(data)
    example = _example(columns)
    predicted = served.predict(example)
    described = described.model_copy(update={"predictions": list(predicted.columns)})
    (data / serving.SERVED_FILE).write_text(described.model_dump_json(indent=1))
    has_signature = not _odd_column(example)
    # It has run: all modules that it needs are loaded.
    code = code_of(name for name in (recorded.workload, recorded.predictor) if name)
    run_id = runs.run_id("pipeline")
    mlflow.pyfunc.save_model(
        folder / "model",
        loader_module=serving.__name__,
        data_path=str(data),
        code_paths=code.paths,
        mlflow_model=Model(
            artifact_path=model.artifact_location,
            model_uuid=model.model_id,
            model_id=model.model_id,
            run_id=run_id,
        ),
        signature=_signature(example, predicted) if has_signature else None,
        input_example=_in_json(example) if has_signature else None,
        pip_requirements=code.requirements,
    )
    outputs = runs.client.get_run(run_id).outputs
    if model.model_id not in {one.model_id for one in (outputs.model_outputs if outputs else [])}:
        runs.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, checkpoint.step)])
    runs.client.log_model_artifacts(model.model_id, str(folder / "model"))


def _copy_checkpoint(store: Store, checkpoint: Commit, data: Path) -> None:
    """Write the verified weights, or the reported folder, into the new folder `data`."""
    if checkpoint.manifest.reported:
        copy_files(store, checkpoint.key, checkpoint.manifest.files, data)
        return
    data.mkdir()
    model = read_model(store, checkpoint)
    weights, metadata = model.tensors()
    safetensors.torch.save_file(weights, data / MODEL_FILE, metadata)
    if model.buffers:
        own = {name: tensor.clone() for name, tensor in model.buffers.items()}
        safetensors.torch.save_file(own, data / serving.BUFFERS_FILE, {"format": "pt"})


def _read_ones(
    workload: Workload[Any], columns: Mapping[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """The columns that `prepare` reads: who asks the served model need not send the others."""
    asked = _Asked(columns)
    try:
        workload.prepare(asked, None)
    except Exception:  # noqa: BLE001 (of a user's code: the served model shows it in a moment)
        return dict(columns)
    return {name: array for name, array in columns.items() if name in asked.names} or dict(columns)


class _Asked(dict[str, npt.NDArray[Any]]):
    """Columns that know which of them were read; who goes over all of them reads all."""

    def __init__(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        super().__init__(columns)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.names.update(super().keys())
        return super().__iter__()

    def items(self) -> Any:
        self.names.update(super().keys())
        return super().items()

    def values(self) -> Any:
        self.names.update(super().keys())
        return super().values()

    def copy(self) -> dict[str, npt.NDArray[Any]]:
        return dict(self)


def _odd_column(example: dict[str, npt.NDArray[Any]] | pd.DataFrame) -> str:
    """The first column of objects beside arrays: MLflow has no signature for such a request."""
    if isinstance(example, pd.DataFrame):
        return ""
    for name, array in example.items():
        if array.dtype.kind == "O":
            _log.warning(
                "column %r holds objects beside columns of arrays: the model in MLflow is without "
                "a signature, and is used as any other",
                name,
            )
            return name
    return ""


def _in_json(
    example: dict[str, npt.NDArray[Any]] | pd.DataFrame,
) -> dict[str, npt.NDArray[Any]] | pd.DataFrame | None:
    """The example as a request in JSON has it; None: it has values that JSON cannot have."""
    if not isinstance(example, pd.DataFrame):
        return example
    try:
        return pd.DataFrame(
            {
                name: column
                if column.dtype.kind in "biuf"
                else pd.Series([_plain(one) for one in column], dtype=object)
                for name, column in example.items()
            }
        )
    except TypeError:
        return None


def _plain(value: Any) -> Any:
    """The value as JSON has it. Raises TypeError if it cannot."""
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(one) for one in value]
    if is_null(value):
        return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    plain = value.item() if isinstance(value, np.generic) else value
    json.dumps(plain)
    return plain


def _signature(
    example: dict[str, npt.NDArray[Any]] | pd.DataFrame, predicted: Any
) -> ModelSignature:
    # MLflow's own types would make a null of booleans false, and refuse times with a zone.
    inputs = (
        Schema(
            [ColSpec("double" if c.dtype.kind == "f" else AnyType(), n) for n, c in example.items()]
        )
        if isinstance(example, pd.DataFrame)
        else infer_signature(example).inputs
    )
    with warnings.catch_warnings():
        # A predicted class is an integer and is never missing.
        warnings.filterwarnings("ignore", "Hint: Inferred schema contains integer column")
        return ModelSignature(inputs, infer_signature(None, predicted).outputs)


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
