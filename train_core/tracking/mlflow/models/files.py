"""The files with which a checkpoint's model loads and serves, written from the run folder.

Nothing of ours in them is a pickle; what a training function reported may hold some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import safetensors.torch

from train_core.config import TrainConfig
from train_core.rank.checkpoint.reader import read_model
from train_core.rank.data.fitted import FITTED_FILE
from train_core.rank.data.recorded_workload import load_recorded
from train_core.storage.objects.store import Store
from train_core.storage.records.names import MODEL_FILE
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.verification.checkpoints import copy_files
from train_core.tracking.mlflow import serving
from train_core.tracking.tracker import Example, ModelFiles
from train_core.workload import Workload, recorded_forms


def model_files(
    folder: RunFolder, record: RunRecord, checkpoint: Commit, asked: TrainConfig | None = None
) -> ModelFiles:
    """The files of a checkpoint's model.

    `asked` has logins that the example's data may need and that run.json does not record.
    """
    # The predictor may be another one than the run began with.
    recorded = folder.newest_request().config
    made_with = {}
    if recorded.predictor:
        trusts = str(recorded.trust_pickle)
        made_with = {"evertrain.predictor": recorded.predictor, "evertrain.trust_pickle": trusts}
    write = partial(_write, folder, record, checkpoint, recorded, asked or recorded)
    return ModelFiles(write, made_with)


def _write(
    folder: RunFolder,
    record: RunRecord,
    checkpoint: Commit,
    recorded: TrainConfig,
    asked: TrainConfig,
    data: Path,
) -> Example:
    _copy_checkpoint(folder.store, checkpoint, data)
    if (fitted := folder.fitted_of(record)) is not None:
        (data / FITTED_FILE).write_bytes(fitted)
    workload = load_recorded(folder, asked)
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
    # It has run: all modules that it needs are loaded.
    code = [name for name in (recorded.workload, recorded.predictor) if name]
    return Example(example, predicted, code)


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
