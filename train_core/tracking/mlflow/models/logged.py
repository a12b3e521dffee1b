"""A model in MLflow that anyone can load or serve, made of a checkpoint's files."""

from __future__ import annotations

import base64
import json
import logging
import tempfile
import warnings
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import numpy.typing as npt
import pandas as pd
from mlflow.entities import LoggedModel, LoggedModelOutput
from mlflow.models import Model, ModelSignature, infer_signature
from mlflow.types.schema import AnyType, ColSpec, Schema

from train_core.datasets.arrays import is_null
from train_core.tracking.mlflow import serving
from train_core.tracking.mlflow.models.code import code_of
from train_core.tracking.mlflow.models.kept import known_models, model_of
from train_core.tracking.mlflow.models.lookups import COPIED, WEIGHTS_TAG, is_copied
from train_core.tracking.mlflow.runs import MlflowRuns
from train_core.tracking.tracker import ModelFiles, TrackedModel

_log = logging.getLogger(__name__)


def copy_files(runs: MlflowRuns, shown: TrackedModel, files: ModelFiles) -> str:
    """Make the model one that loads and serves, with a copy of its files; its URI.

    A model gets them once; a copy that was not finished is completed.
    """
    model = model_of(runs, shown)
    if not (is_copied(model) and files.made_with.items() <= model.tags.items()):
        with tempfile.TemporaryDirectory() as folder:
            _save(runs, shown, model, Path(folder), files)
        tags = {WEIGHTS_TAG: COPIED, **files.made_with}
        runs.client.set_logged_model_tags(model.model_id, tags)
        known_models(runs)[shown.digest] = runs.client.get_logged_model(model.model_id)
    return f"models:/{model.model_id}"


def _save(
    runs: MlflowRuns, shown: TrackedModel, model: LoggedModel, folder: Path, files: ModelFiles
) -> None:
    data = folder / "data"
    made = files.write(data)
    has_signature = not _odd_column(made.columns)
    code = code_of(made.code)
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
        signature=_signature(made.columns, made.predicted) if has_signature else None,
        input_example=_in_json(made.columns) if has_signature else None,
        pip_requirements=code.requirements,
    )
    outputs = runs.client.get_run(run_id).outputs
    if model.model_id not in {one.model_id for one in (outputs.model_outputs if outputs else [])}:
        runs.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, shown.step)])
    runs.client.log_model_artifacts(model.model_id, str(folder / "model"))


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
