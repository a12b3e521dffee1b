"""A checkpoint's model in MLflow, as anyone can load or serve it. Nothing of it is a pickle."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import numpy.typing as npt
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import Model, infer_signature

from train_core.engine import serving
from train_core.engine.checkpoint_files import read_verified
from train_core.engine.mirror import set_environment
from train_core.engine.mlflow_runs import (
    MlflowRuns,
    is_refusal,
    public_uri,
    seconds,
    without_login,
)
from train_core.engine.mlflow_stages import headline
from train_core.errors import CheckpointError, StorageError, TrackingError
from train_core.results import CheckpointSummary
from train_core.storage.names import MODEL_FILE
from train_core.storage.run_folder import Checkpoint
from train_core.workload import load_workload

_CHECKPOINT = "evertrain.checkpoint"
_DIGEST = "evertrain.checkpoint_digest"
_MODEL_ID = re.compile(r"\bm-[0-9a-f]{32}\b")
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>\d+)|@(?P<alias>[^/@]+))?")
_REQUIREMENTS = (
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
    runs: MlflowRuns, best: CheckpointSummary, test_metrics: dict[str, float | None]
) -> str:
    """A checkpoint's model as a LoggedModel of the parent run, with metrics; gives its URI.

    A checkpoint is logged once: a model that is there is used again, one half there completed.
    Raises CheckpointError if the weights are not what was committed.
    """
    checkpoint = runs.folder.find(best.name)
    model = _find(runs, checkpoint) or _create(runs, checkpoint)
    if model.status != LoggedModelStatus.READY:
        with tempfile.TemporaryDirectory() as folder:
            _save(runs, checkpoint, model, Path(folder))
        runs.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    runs.log_metrics(
        "pipeline",
        headline(runs, best, test_metrics),
        step=best.step,
        time_s=seconds(checkpoint.manifest.created_at),
        model_id=model.model_id,
    )
    return f"models:/{model.model_id}"


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
    set_environment()
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
    # Not every store keeps the id; the address of what was registered has it, too.
    of_source = _MODEL_ID.search(found.source or "")
    model_id = found.model_id or (of_source and of_source[0])
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


def _save(runs: MlflowRuns, checkpoint: Checkpoint, model: LoggedModel, folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    entries = tuple(e for e in checkpoint.manifest.files if e.name == MODEL_FILE)
    if not entries:
        raise CheckpointError(f"{checkpoint.key} has no {MODEL_FILE}")
    files = read_verified(runs.folder.store, checkpoint.key, entries)
    (data / MODEL_FILE).write_bytes(files[MODEL_FILE])
    config = runs.record.config.model_copy(update={"runtime_env": {}})
    columns = load_workload(config.workload, config.settings).example()
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
        signature=infer_signature(example, served.predict(example)),
        input_example=example,
        pip_requirements=_requirements(served.workload),
    )
    runs.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, checkpoint.manifest.step)])
    runs.client.log_model_artifacts(model.model_id, str(folder / "model"))


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
    paths = [str(Path(serving.__file__).parents[1])]
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
        for name in (*_REQUIREMENTS, *owners)
    ]


def _top_module(workload: object) -> str:
    return type(workload).__module__.partition(".")[0]


def _is_installed(top: str) -> bool:
    file = getattr(sys.modules[top], "__file__", None) or ""
    return bool({"site-packages", "dist-packages"} & set(Path(file).parts))
