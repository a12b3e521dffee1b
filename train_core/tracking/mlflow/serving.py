"""The model that MLflow serves: raw columns in, predictions out. Nothing of ours in it is a pickle.

It is loaded from a folder, by MLflow's `loader_module`:

    served.json          which workload, with which settings, and the types of its raw columns
    model.safetensors    the checkpoint's weights, verified
    buffers.safetensors  the buffers that the model's own state leaves out, if it has any
    fitted.safetensors   what the workload fitted to its training split, if it did
    files/               in their place, what a training function reported, for its predictor
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from mlflow.environment_variables import MLFLOW_ALLOW_PICKLE_DESERIALIZATION
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from pydantic import BaseModel
from safetensors.torch import load_file
from torch import nn

from train_core import predictors
from train_core.config import FunctionTraining, TrainConfig
from train_core.datasets.arrays import is_null
from train_core.errors import DataError, WorkloadError
from train_core.loading import load_function
from train_core.rank.checkpoint.reader import ModelState, load_model_file
from train_core.rank.data.fitted import FITTED_FILE, load_without_data
from train_core.rank.data.prepared import rows_without_prediction
from train_core.rank.data.raw_columns import RawColumns, prepared
from train_core.rank.data.request_columns import requested_columns
from train_core.rank.metrics.forward import predict
from train_core.storage.records.names import MODEL_FILE, REPORTED_FOLDER
from train_core.workload import Workload

SERVED_FILE, BUFFERS_FILE = "served.json", "buffers.safetensors"


class Served(BaseModel):
    """served.json."""

    config: TrainConfig
    dtypes: dict[str, str]
    """The raw columns' types, as numpy spells them."""
    forms: dict[str, str] = {}
    """What each raw column is (`datasets.forms.Forms`). Earlier versions recorded none."""
    predictions: list[str] = []
    """The columns that it gives, also for no rows. Earlier versions recorded none."""


class ServedModel:
    """A trained model that predicts from raw columns, as batch inference does."""

    def __init__(self, folder: Path) -> None:
        served = Served.model_validate_json((folder / SERVED_FILE).read_bytes())
        self.config, self._names = served.config, served.predictions
        self._forms = served.forms
        self._dtypes = {} if served.forms else served.dtypes
        fitted = folder / FITTED_FILE
        self.workload: Workload[Any] = load_without_data(
            self.config, fitted.read_bytes() if fitted.exists() else None
        )
        self.model = _model(folder, self.config, self.workload).eval()

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """A row for each sample: `prediction` and, for classifiers, `probabilities`.

        `data` is a DataFrame, or arrays by column name. A number is missing in the rows for which
        the model gives NaN. Raises MlflowException, which a server answers with, for a column that
        is missing or holds other values than in training.
        """
        try:
            return self._predicted(data)
        except DataError as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from error

    def _predicted(self, data: Any) -> pd.DataFrame:
        if not len(data) or not len(data[next(iter(data))]):
            return pd.DataFrame(columns=self._names)
        columns = requested_columns(data, self._forms, self.workload.target_columns)
        for name, dtype in self._dtypes.items():
            if name in columns:
                columns[name] = _array(columns[name], dtype)
        num_samples = len(next(iter(columns.values())))
        size = self.config.eval_batch_size
        return pd.concat(
            [
                self._predict_batch(columns.rows(start, start + size), start)
                for start in range(0, num_samples, size)
            ],
            ignore_index=True,
        )

    def _predict_batch(self, columns: RawColumns, first: int) -> pd.DataFrame:
        num_rows = len(next(iter(columns.values())))
        batch = prepared(
            self.workload, columns, [f"#{row}" for row in range(first, first + num_rows)]
        )
        with torch.no_grad():
            found = predict(self.workload, self.model, batch, self.config)
        tensors = {name: _plain(tensor) for name, tensor in found.items()}
        frame = pd.DataFrame(
            {name: a if a.ndim == 1 else a.tolist() for name, a in tensors.items()}
        )
        missing = rows_without_prediction(found)
        for name in frame if missing.any() else ():
            # A server answers with JSON, which has no NaN.
            known = [
                value
                if not is_missing
                else _without_nan(value)
                if isinstance(value, list)
                else None
                for value, is_missing in zip(frame[name], missing, strict=True)
            ]
            frame[name] = pd.Series(known, dtype=object)
        return frame


def _of_missing_row(value: Any) -> Any:
    """What a row without a prediction has: None, or the list with None in the place of NaN."""
    return _without_nan(value) if isinstance(value, list) else None


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    return None if is_null(value) else value


def _model(folder: Path, config: TrainConfig, workload: Workload[Any]) -> nn.Module:
    trained = config.trainable
    if isinstance(trained, FunctionTraining):
        if trained.trust_pickle and not MLFLOW_ALLOW_PICKLE_DESERIALIZATION.get():
            raise WorkloadError(
                "the run was made with trust_pickle, so its files may hold pickles, which "
                "run any code, and MLFLOW_ALLOW_PICKLE_DESERIALIZATION is false: set it to true if "
                "you trust them, or train without trust_pickle"
            )
        predictor, reported = load_function(trained.predictor), folder / REPORTED_FOLDER
        return predictors.apply(predictor, reported, is_trusted=trained.trust_pickle)
    model = workload.model()
    _model_state(folder).give(model)
    return model


def _model_state(folder: Path) -> ModelState:
    file, buffers = folder / MODEL_FILE, folder / BUFFERS_FILE
    data = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
    state = load_model_file(data, MODEL_FILE)
    return replace(state, buffers=load_file(buffers)) if buffers.exists() else state


def _load_pyfunc(path: str) -> ServedModel:
    return ServedModel(Path(path))


def _array(values: Any, trained: str) -> npt.NDArray[Any]:
    """The column as training had it, for a model whose `served.json` has no forms."""
    array, dtype = np.asarray(values), np.dtype(trained)
    if array.dtype.kind == "O":
        missing = np.array([is_null(value) for value in array], bool)
        if missing.any():
            array = array.copy()
            array[missing] = np.nan if dtype.kind in "iuf" else None
            if dtype.kind in "OUSb":
                return array
            if dtype.kind in "iu":
                return array.astype(np.float64)
    if dtype.kind in "iu" and array.dtype.kind == "f" and np.isnan(array).any():
        return array
    # Texts keep their own length.
    return array.astype(dtype, copy=False) if dtype.kind in "biufcmM" else array


def _plain(tensor: torch.Tensor) -> npt.NDArray[Any]:
    # numpy has no bfloat16.
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: npt.NDArray[Any] = wide.cpu().numpy()
    return array
