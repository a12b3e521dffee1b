"""Reads a checkpoint's files, verifies them and reassembles split tensors, with few copies.

model.safetensors       parameters and buffers; loads with safetensors alone
optimizer.safetensors   `state/<parameter>/<name>`: moments and steps
…                       one for every further part that has tensors
state.json              the whole nested state, each tensor replaced by {"$tensor": path}, with
                        "host": true if it lay in main memory while others lay on a device

A part may be several files, `<part>-00001-of-00002.safetensors` …, and some of them may have some
rows of a tensor only (`row_shards.py`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from train_core.errors import CheckpointError
from train_core.policy.checkpoints.layout import BUFFERS, MODEL, OPTIMIZER, WORKLOAD, part_of
from train_core.rank.checkpoint.packing import pack, unpack
from train_core.rank.checkpoint.row_shards import RowShards, read_rows, rows_here
from train_core.rank.checkpoint.snapshot import bytes_of, tensors_in
from train_core.rank.checkpoint.state import EXTRA_STATE, load_model_state, load_unsaved_buffers
from train_core.rank.distributed.fsdp import is_distributed
from train_core.rank.distributed.group import Group
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import parse_json
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import STATE_JSON
from train_core.storage.records.tensor_file import read_layout
from train_core.storage.records.verified_files import read_file
from train_core.storage.run_folder import Commit

EXTRA_STATES = "evertrain.extra_states"
"""The entry of a safetensors file's metadata with the states of modules that are no tensors."""
_FILES_AT_A_TIME = 4
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ModelState:
    """What makes a new model the trained one."""

    weights: dict[str, Any]
    """Parameters, persistent buffers, and the extra states of modules, by name."""
    buffers: dict[str, Tensor]
    """The buffers that the model's own state leaves out, by name."""

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The weights for a safetensors file, and its metadata with the extra states."""
        plain, tensors = pack(self.weights)
        metadata = {"format": "pt"}
        if any(not isinstance(value, Tensor) for value in self.weights.values()):
            metadata[EXTRA_STATES] = json.dumps(plain)
        # safetensors refuses tensors that share memory.
        return {name: tensor.clone() for name, tensor in tensors.items()}, metadata

    def give(self, model: nn.Module) -> None:
        """Make the model the trained one. Raises RuntimeError, in torch's words, if it differs."""
        load_model_state(model, self.weights)
        load_unsaved_buffers(model, self.buffers)


class Assembly:
    """Puts the tensors of a checkpoint's files together, whole or this rank's rows of them.

    In its state, what an object keeps as it is given lies on `device`, the training's, unless it
    lay in main memory beside a GPU.

    With a `mesh`, tensors that files have in rows, and those of which `is_cut(path, shape)` says
    so, become DTensors of this rank's rows; all others are whole.
    """

    def __init__(
        self,
        group: Group | None = None,
        mesh: DeviceMesh | None = None,
        is_cut: Callable[[str, torch.Size], bool] | None = None,
        device: torch.device = _CPU,
    ) -> None:
        self._group = group
        self._device = device
        self._mesh = mesh
        self._is_cut = is_cut
        self._whole: dict[str, Tensor] = {}
        self._pieces: dict[str, tuple[RowShards, torch.Size]] = {}
        self._plain: Any = None

    def add(self, file: str, buffer: Tensor) -> None:
        """Take what a file has. Raises CheckpointError if it is malformed."""
        data = bytes_of(buffer)
        if file == STATE_JSON:
            self._plain = parse_json(data, f"{file} is not JSON")
        part = part_of(file)
        if part is None:
            return
        layout = read_layout(data, file)
        rows = read_rows(layout.metadata, file)
        for name, tensor in tensors_in(buffer, layout).items():
            path = f"{part}/{name}"
            start, shape = rows.get(name, (0, tensor.shape))
            if name in rows or (self._is_cut and self._is_cut(path, tensor.shape)):
                self._piece(path, torch.Size(shape), tensor).add(start, tensor, path)
            else:
                # The model and the optimizer copy what they are given; others may keep it.
                self._whole[path] = tensor if part in (MODEL, OPTIMIZER) else tensor.clone()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by path, `<part>/<name>`. Raises CheckpointError if rows are missing."""
        found = dict(self._whole)
        for path, (pieces, shape) in self._pieces.items():
            rows = pieces.whole(path)
            found[path] = rows if self._mesh is None else self._distributed(rows, shape)
        return found

    def state(self) -> dict[str, Any]:
        """The whole nested state. Raises CheckpointError if the files do not fit together."""
        if not isinstance(self._plain, dict):
            raise CheckpointError(f"the checkpoint has no {STATE_JSON}")
        state: dict[str, Any] = unpack(self._plain, self.tensors(), self._placed)
        return state

    def _placed(self, path: str, tensor: Tensor) -> Tensor:
        return tensor.to(self._device) if _is_kept(path) else tensor

    def model(self) -> ModelState:
        """The model's own part of the state. Raises CheckpointError as `state`."""
        tensors = self.tensors()
        plain = self._plain if isinstance(self._plain, dict) else {}

        def named(part: str) -> dict[str, Any]:
            if part in plain:
                found = unpack(plain[part], tensors)
                if isinstance(found, dict):
                    return found
                raise CheckpointError(f"{part!r} in {STATE_JSON} is no JSON object")
            begin = f"{part}/"
            return {
                path.removeprefix(begin): t for path, t in tensors.items() if path.startswith(begin)
            }

        return ModelState(named(MODEL), named(BUFFERS))

    def _piece(self, path: str, shape: torch.Size, like: Tensor) -> RowShards:
        if path not in self._pieces:
            size_bytes = math.prod(shape) * like.itemsize
            # Without psutil, which a served model need not have.
            memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            if not shape or size_bytes > memory_bytes:
                raise CheckpointError(f"the tensor {path!r} cannot have rows of shape {shape}")
            wanted = range(shape[0])
            if self._mesh is not None and self._group is not None:
                wanted = rows_here(shape[0], self._group)
            self._pieces[path] = RowShards(shape, like.dtype, wanted), shape
        pieces, known = self._pieces[path]
        if shape != known:
            raise CheckpointError(f"the tensor {path!r} is of shape {known} and of {shape}")
        return pieces

    def _distributed(self, rows: Tensor, shape: torch.Size) -> Tensor:
        from torch.distributed.tensor import DTensor, Shard

        assert self._mesh is not None
        whole = torch.empty(shape, device="meta")
        return DTensor.from_local(
            rows.to(self._mesh.device_type),
            self._mesh,
            [Shard(0)],
            shape=shape,
            stride=whole.stride(),
        )


def _is_kept(path: str) -> bool:
    """Whether the user's code, or an optimizer's, keeps this tensor as it is given.

    Weights, and an optimizer's state of them, are copied to where they belong; a stream's position
    is in main memory.
    """
    part, _, name = path.partition("/")
    if part == OPTIMIZER:
        return not name.startswith("state/")
    return part == WORKLOAD or (part == MODEL and EXTRA_STATE in name)


def read_buffer(store: Store, key: str, entry: FileEntry) -> Tensor:
    """A file's bytes, verified. Raises CheckpointError, naming it, if it is damaged or missing."""
    data = read_file(store, key, entry)
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def load_model_file(buffer: Tensor, file: str) -> ModelState:
    """The model in a safetensors file's bytes, which any program may have written.

    Raises CheckpointError if it is malformed.
    """
    layout = read_layout(bytes_of(buffer), file)
    tensors = tensors_in(buffer, layout)
    if EXTRA_STATES not in layout.metadata:
        return ModelState(tensors, {})
    plain = parse_json(
        layout.metadata[EXTRA_STATES].encode(), f"{file}: its {EXTRA_STATES} is not JSON"
    )
    return ModelState(unpack(plain, tensors), {})


def read_model(store: Store, checkpoint: Commit) -> ModelState:
    """What a checkpoint's model is, verified. Raises CheckpointError."""
    files = checkpoint.manifest.files
    entries = [e for e in files if part_of(e.name) in (MODEL, BUFFERS) or e.name == STATE_JSON]
    if not any(part_of(entry.name) == MODEL for entry in entries):
        why = " that evertrain can read: a training function reported it"
        is_reported = checkpoint.manifest.reported is not None
        raise CheckpointError(
            f"{store.uri(checkpoint.key)} has no weights{why if is_reported else ''}"
        )
    return _assemble(store, checkpoint, entries).model()


def load_state(store: Store, checkpoint: Commit) -> dict[str, Any]:
    """A checkpoint's whole state, verified, by part. Raises CheckpointError."""
    return _assemble(store, checkpoint, checkpoint.manifest.files).state()


def read_buffers(store: Store, folder: str, entries: Iterable[FileEntry]) -> dict[str, Tensor]:
    """The files' bytes, verified, by name. Raises CheckpointError as `read_buffer`.

    Several at a time: one is hashed, or on its way through the network, while another is read.
    """
    listed = list(entries)
    keys = [f"{folder}/{entry.name}" for entry in listed]
    with ThreadPoolExecutor(_FILES_AT_A_TIME, "read-files") as threads:
        buffers = threads.map(partial(read_buffer, store), keys, listed)
        return {entry.name: buffer for entry, buffer in zip(listed, buffers, strict=True)}


def _assemble(store: Store, checkpoint: Commit, entries: Iterable[FileEntry]) -> Assembly:
    assembly = Assembly()
    for name, buffer in read_buffers(store, checkpoint.key, entries).items():
        assembly.add(name, buffer)
    return assembly


def sharded_assembly(model: nn.Module, group: Group) -> Assembly:
    """What puts a checkpoint's files together for a sharded model: this rank's rows of them."""
    weights = {name: value for name, value in model.state_dict().items() if is_distributed(value)}

    def is_cut(path: str, shape: torch.Size) -> bool:
        part, *names = path.split("/")
        if part == MODEL:
            return names[-1] in weights
        # optimizer/state/<parameter>/<name>: moments are cut as their parameters are.
        if part != OPTIMIZER or len(names) != 3 or names[1] not in weights:
            return False
        return weights[names[1]].shape == shape

    mesh = next(iter(weights.values())).device_mesh
    return Assembly(group, mesh, is_cut, group.device)
