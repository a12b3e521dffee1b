"""A checkpoint's files: one safetensors file a part, and state.json for all that is no tensor.

model.safetensors       parameters and buffers; loads with safetensors alone
optimizer.safetensors   `state/<parameter>/<name>`: moments and steps
…                       one for every further part that has tensors
state.json              the whole nested state, each tensor replaced by {"$tensor": path}
"""

from __future__ import annotations

import json
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from train_core.engine.state import pack, unpack
from train_core.errors import CheckpointError
from train_core.storage.manifest import FileEntry, digest_of
from train_core.storage.names import MODEL_FILE
from train_core.storage.run_folder import Checkpoint
from train_core.storage.store import Store

STATE_JSON = "state.json"


class Snapshot:
    """Copies of tensors in buffers of its own, which are used again for the next snapshot."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self.plain: Any = None

    def take(self, state: dict[str, Any]) -> None:
        """Copy the state; when this returns the live tensors may change."""
        self.plain, tensors = pack(state)
        for name in self._buffers.keys() - tensors.keys():
            del self._buffers[name]
        for name, tensor in tensors.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(
                    tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda"
                )
                self._buffers[name] = buffer
            buffer.copy_(tensor.detach(), non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def has_nan(self) -> bool:
        """Whether a weight or a buffer of the model is not a number."""
        return any(
            bool(torch.isnan(tensor).any())
            for path, tensor in self._buffers.items()
            if path.startswith("model/") and tensor.is_floating_point()
        )

    def files(self) -> dict[str, bytes]:
        """The files' bytes by name."""
        parts: dict[str, dict[str, Tensor]] = {}
        for path, tensor in self._buffers.items():
            part, _, name = path.partition("/")
            parts.setdefault(part, {})[name] = tensor
        files = {
            f"{part}.safetensors": safetensors.torch.save(tensors)
            for part, tensors in sorted(parts.items())
        }
        files[STATE_JSON] = json.dumps(self.plain, indent=1, allow_nan=True).encode()
        return files


def read_verified(store: Store, folder: str, entries: tuple[FileEntry, ...]) -> dict[str, bytes]:
    """The files that a manifest lists, by name.

    Raises CheckpointError, naming the file, if one is missing or not what was committed.
    """
    files: dict[str, bytes] = {}
    for entry in entries:
        key = f"{folder}/{entry.name}"
        try:
            # The size first: a file that lies about it is not read into memory.
            size = store.size_bytes(key)
            data = store.read(key) if size == entry.size_bytes else b""
        except FileNotFoundError as error:
            raise CheckpointError(f"{store.uri(key)} is missing") from error
        if size != entry.size_bytes:
            raise CheckpointError(
                f"{store.uri(key)} has {size} bytes, {entry.size_bytes} were committed"
            )
        if digest_of(data) != entry.digest:
            raise CheckpointError(f"{store.uri(key)}: its SHA-256 is not the committed one")
        files[entry.name] = data
    return files


def parse(files: dict[str, bytes]) -> dict[str, Any]:
    """The state that the files hold. Raises CheckpointError if they do not fit together."""
    tensors = {
        f"{name.removesuffix('.safetensors')}/{key}": tensor
        for name, data in files.items()
        if name.endswith(".safetensors")
        for key, tensor in load_tensors(data, name).items()
    }
    if STATE_JSON not in files:
        raise CheckpointError(f"the checkpoint has no {STATE_JSON}")
    state: dict[str, Any] = unpack(json.loads(files[STATE_JSON]), tensors)
    return state


def load_tensors(data: bytes, name: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises CheckpointError if it is malformed."""
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{name} is not a safetensors file: {error}") from error


def load_weights(store: Store, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """A checkpoint's parameters and buffers, verified. Raises CheckpointError."""
    entries = tuple(e for e in checkpoint.manifest.files if e.name == MODEL_FILE)
    if not entries:
        raise CheckpointError(f"{store.uri(checkpoint.key)} has no {MODEL_FILE}")
    return load_tensors(read_verified(store, checkpoint.key, entries)[MODEL_FILE], MODEL_FILE)


def load_state(store: Store, checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's whole state, nested as it was captured, verified. Raises CheckpointError."""
    return parse(read_verified(store, checkpoint.key, checkpoint.manifest.files))
