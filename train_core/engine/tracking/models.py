"""A checkpoint's model in MLflow, as anyone can load or serve it. Nothing of it is a pickle."""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import numpy.typing as npt
import pandas as pd
import safetensors.torch
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature, infer_signature

import train_core
from train_core.config import TrainConfig
from train_core.engine.checkpoint.reader import load_weights
from train_core.engine.data.recorded import load_recorded
from train_core.engine.tracking import serving
from train_core.engine.tracking.client import ONE_QUESTION, REPEATED_BY_CALLER
from train_core.engine.tracking.runs import MlflowRuns, seconds
from train_core.engine.tracking.server import (
    existing_client,
    is_refusal,
    public_uri,
    without_login,
)
from train_core.engine.tracking.stages import headline
from train_core.errors import StorageError, TrackingError
from train_core.results import CheckpointSummary
from train_core.storage.coordination.pins import MLFLOW_MODEL, pin
from train_core.storage.records.names import MODEL_FILE
from train_core.storage.run_folder import Checkpoint, RunFolder

_CHECKPOINT = "evertrain.checkpoint"
_DIGEST = "evertrain.checkpoint_digest"
_MODEL_ID = re.compile(r"m-[0-9a-f]{32}")
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>\d+)|@(?P<alias>[^/@]+))?")
REQUIREMENTS = (
    "blake3",
    "mlflow",
    "numpy",
    "pandas",
    "fsspec",
    "pydantic",
    "safetensors",
    "torch",
    "torchmetrics",
)


def log_checkpoint_model(
    runs: MlflowRuns,
    best: CheckpointSummary,
    test_metrics: dict[str, float | None],
    config: TrainConfig | None = None,
) -> str:
    """A checkpoint's model as a LoggedModel of the parent run, with metrics; gives its URI.

    A checkpoint is logged once: a model that is there is used again, one half there completed.
    `config` has the logins that the example's data may need, and run.json has not.
    Raises CheckpointError if the weights are not what was committed.
    """
    checkpoint = runs.folder.find(best.name)
    # Before there is a model that somebody could register and give an alias.
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


def unregistered_checkpoints(run_url: str, tracking_uri: str) -> list[str]:
    """The run's checkpoints whose model MLflow has, and no registered version points to.

    A checkpoint that MLflow knows nothing of is not among them. Raises TrackingError if MLflow
    cannot be asked.
    """
    ONE_QUESTION.apply()
    folder = RunFolder.at(run_url)
    try:
        client = existing_client(tracking_uri)
        versions = _all_pages(client.search_model_versions)
        registered = {model_id_of(version.model_id, version.source) for version in versions}
        experiments = [one.experiment_id for one in _all_pages(client.search_experiments)]
        found = []
        for checkpoint in folder.checkpoints():
            filter_string = f"tags.`{_DIGEST}` = '{checkpoint.digest}'"
            search = partial(client.search_logged_models, experiments, filter_string)
            models = {model.model_id for model in _all_pages(search)}
            if models and not models & registered:
                found.append(str(checkpoint.name))
    except (MlflowException, OSError) as error:
        said = " ".join(str(error).split())[:500]
        raise TrackingError(
            f"MLflow at {public_uri(tracking_uri)!r} cannot tell which models are registered: "
            f"{without_login(said, tracking_uri)}"
        ) from error
    return found


def model_id_of(recorded: str | None, source: str | None) -> str | None:
    """The id of the LoggedModel that a registered version points to, None if of no such model.

    Not every store keeps the id; the address of what was registered has it as a part of its path.
    """
    parts = (source or "").split("/")
    # A folder above the models may have the name of another one.
    return recorded or next((part for part in parts[::-1] if _MODEL_ID.fullmatch(part)), None)


def _all_pages(search: Callable[..., Any]) -> list[Any]:
    found, token = [], None
    while True:
        page = search(page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def checkpoint_of_model(model_uri: str, tracking_uri: str) -> tuple[str, str]:
    """The address and the manifest's digest of the checkpoint that a model in MLflow is of.

    `model_uri` is `models:/name/version`, `models:/name@alias` or a LoggedModel's `models:/m-…`.
    Raises TrackingError if there is no such model or evertrain did not log it, and StorageError
    if MLflow does not answer.
    """
    parsed = _MODEL_URI.fullmatch(model_uri)
    if parsed is None:
        raise TrackingError(
            f"{model_uri!r} names no model: models:/name/version or models:/name@alias"
        )
    REPEATED_BY_CALLER.apply()
    client = MlflowClient(tracking_uri, tracking_uri)
    try:
        tags = _tags_of_model(client, **parsed.groupdict())
    except (MlflowException, OSError) as error:
        said = f"{model_uri!r} in MLflow at {public_uri(tracking_uri)!r}: "
        said += without_login(str(error).strip().partition("\n")[0], tracking_uri)
        raise (TrackingError(said) if is_refusal(error) else StorageError(said)) from error
    if not tags.keys() >= {_CHECKPOINT, _DIGEST}:
        raise TrackingError(
            f"{model_uri!r} was not logged by evertrain: it does not say of which checkpoint it is"
        )
    return tags[_CHECKPOINT], tags[_DIGEST]


def _tags_of_model(
    client: MlflowClient, name: str, version: str | None, alias: str | None
) -> dict[str, str]:
    if alias is not None:
        found = client.get_model_version_by_alias(name, alias)
    elif version is not None:
        found = client.get_model_version(name, version)
    else:
        return dict(client.get_logged_model(name).tags)
    model_id = model_id_of(found.model_id, found.source)
    logged = client.get_logged_model(model_id).tags if model_id else {}
    return {**logged, **found.tags}


def _find(runs: MlflowRuns, checkpoint: Checkpoint) -> LoggedModel | None:
    found = runs.client.search_logged_models(
        [runs.experiment_id],
        f"tags.`{_DIGEST}` = '{checkpoint.digest}' and source_run_id = '{runs.run_id('pipeline')}'",
        max_results=1,
    )
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
            _DIGEST: checkpoint.digest,
            _CHECKPOINT: runs.folder.store.uri(checkpoint.key),
        },
    )


def _save(
    runs: MlflowRuns, checkpoint: Checkpoint, model: LoggedModel, folder: Path, asked: TrainConfig
) -> None:
    data = folder / "data"
    data.mkdir()
    weights = load_weights(runs.folder.store, checkpoint)
    # The library writes no tensors that lie in one piece of memory.
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
        code_paths=_code_paths(served.workload),
        mlflow_model=Model(
            artifact_path=model.artifact_location,
            model_uuid=model.model_id,
            model_id=model.model_id,
            run_id=run_id,
        ),
        signature=_signature(example, served.predict(example)),
        input_example=example,
        pip_requirements=_requirements(served.workload),
    )
    runs.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, checkpoint.step)])
    runs.client.log_model_artifacts(model.model_id, str(folder / "model"))


def _signature(example: Any, predicted: Any) -> ModelSignature:
    inputs = infer_signature(example).inputs
    with warnings.catch_warnings():
        # A predicted class is an integer, and none is ever missing.
        warnings.filterwarnings("ignore", "Hint: Inferred schema contains integer column")
        return ModelSignature(inputs, infer_signature(example, predicted).outputs)


def _example(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]] | pd.DataFrame:
    """A table if every column is a list of plain values, else arrays by name."""
    if any(array.ndim != 1 for array in columns.values()):
        return dict(columns)
    # MLflow narrows no number of a table, and pandas reads JSON as these.
    wide = {"f": np.float64, "i": np.int64, "u": np.int64}
    return pd.DataFrame(
        {
            name: array.astype(wide.get(array.dtype.kind, array.dtype))
            for name, array in columns.items()
        }
    )


def _code_paths(workload: object) -> list[str]:
    """This library, and the user's module or package unless it is an installed one."""
    paths = [str(Path(train_core.__file__).parent)]
    top = _top_module(workload)
    if top != "train_core" and not _is_installed(top):
        module = sys.modules[top]
        paths.append(str(module.__path__[0] if hasattr(module, "__path__") else module.__file__))
    return paths


def _requirements(workload: object) -> list[str]:
    top = _top_module(workload)
    owners = metadata.packages_distributions().get(top, []) if _is_installed(top) else []
    return [
        # A local label ("+cpu") is known to no index.
        f"{name}=={metadata.version(name).partition('+')[0]}"
        for name in (*REQUIREMENTS, *owners)
    ]


def _top_module(workload: object) -> str:
    return type(workload).__module__.partition(".")[0]


def _is_installed(top: str) -> bool:
    file = getattr(sys.modules[top], "__file__", None) or ""
    return bool({"site-packages", "dist-packages"} & set(Path(file).parts))
