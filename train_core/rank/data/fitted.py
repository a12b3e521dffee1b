"""What a workload fits to its training split: one file of the run, and of each of its models.

It is a safetensors file: the arrays and tensors of the state, and its JSON as bytes, which may be
longer than the format lets a header be.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset, Stream, users_own
from train_core.datasets.sources import NoFiles
from train_core.errors import CheckpointError, WorkloadError
from train_core.loading import load_workload
from train_core.policy.findings import EVERYTHING
from train_core.rank.checkpoint.packing import pack, unpack
from train_core.storage.records.documents import parse_json
from train_core.storage.records.manifest import FileEntry
from train_core.workload import Workload, fits, seed_generators

FITTED_FILE = "fitted.safetensors"
_STATE, _JSON = "fitted", "json"
_SEED = 1


def fit(workload: Workload[Any], train: Dataset | Stream) -> bytes | None:
    """Let the workload fit to its training split, give it the result; that as a file.

    None: it fits nothing. Raises WorkloadError for a result that cannot be stored.
    """
    if not fits(workload):
        return None
    seed_generators(_SEED)
    state = workload.fit(users_own(train))
    if state is None:
        raise WorkloadError(
            f"fit() of {type(workload).__name__} returns None: return what was fitted, as a dict"
        )
    _refuse_sets(state)
    try:
        data = _file_of(state)
    except WorkloadError as error:
        raise WorkloadError(
            f"what fit() returns cannot be stored: {error}. Of an index, a series or an array of "
            "objects take .tolist(), of a date or a time .isoformat()"
        ) from error
    # As every other process will have it.
    give(workload, data)
    return data


def give(workload: Workload[Any], data: bytes | None) -> None:
    """Give the workload what was fitted; None: nothing was."""
    workload._fitted = None if data is None else state_of(data)  # noqa: SLF001 (no concern of the workload's author)


def load_without_data(config: TrainConfig, fitted: bytes | None) -> Workload[Any]:
    """The workload as a served model has it: what was fitted, and no file of its training.

    Who accepts other predictions there lets it read the files that are there.
    """
    workload = load_workload(config.workload, config.settings)
    give(workload, fitted)
    if not {"predictions", EVERYTHING}.intersection(config.accept):
        workload._files = NoFiles()  # noqa: SLF001 (no concern of the workload's author)
    return workload


def entry_of(data: bytes) -> FileEntry:
    """What run.json says of the file. Its name has its digest in it."""
    entry = FileEntry.of(FITTED_FILE, data)
    return entry.model_copy(update={"name": f"{entry.digest[:16]}-{FITTED_FILE}"})


def state_of(data: bytes) -> Any:
    """The state in the file. Raises CheckpointError if it is no such file."""
    try:
        tensors = safetensors.torch.load(data)
        text = tensors.pop(_JSON).numpy().tobytes()
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{FITTED_FILE} cannot be read: {error}") from error
    plain = parse_json(text, f"{FITTED_FILE} has no JSON of a state")
    return unpack(plain, tensors)[_STATE]


def _refuse_sets(value: Any, path: str = "") -> None:
    """Raise WorkloadError for a set: its texts have another order in each process."""
    if isinstance(value, set | frozenset):
        raise WorkloadError(
            f"what fit() returns has a set{f' at {path}' if path else ''}, which has another order "
            "in each process: return sorted(…) of it"
        )
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        parts = value.items()
        for key in value:
            _refuse_sets(key, path)
    elif isinstance(value, list | tuple | deque):
        parts = enumerate(value)
    for key, part in parts:
        _refuse_sets(part, f"{path}/{key}".lstrip("/"))


def _file_of(state: Any) -> bytes:
    # Below a name of its own, so that no tensor's name is that of the JSON.
    plain, tensors = pack({_STATE: state})
    text = np.frombuffer(json.dumps(plain).encode(), np.uint8)
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save({**own, _JSON: torch.from_numpy(text.copy())})
