"""A copy of the training's state, laid out in memory as the files that it will be.

The loop waits for the copy and for nothing else, and on a GPU not even for that: each tensor goes
straight to its place in its file's buffer, and the buffers are used again for the next snapshot.
What is stored is the buffer itself, so a checkpoint in the making costs the memory of one state,
over all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from train_core.errors import WorkloadError
from train_core.policy.checkpoints.layout import (
    MODEL,
    OPTIMIZER,
    PlannedFile,
    TensorInfo,
    index_name,
    plan_files,
    plan_row_files,
)
from train_core.policy.samples.sharding import shards_of_rank
from train_core.rank.checkpoint.device_copy import DeviceCopy
from train_core.rank.checkpoint.packing import pack
from train_core.rank.checkpoint.row_shards import ROWS, check_rows, rows_here
from train_core.rank.distributed.fsdp import is_distributed
from train_core.rank.distributed.group import Group
from train_core.storage.objects.backends.disk_files import BLOCK_BYTES
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.records.names import STATE_JSON
from train_core.storage.records.tensor_file import TensorFile, lay_out

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16, "I16": torch.int16, "F16": torch.float16, "BF16": torch.bfloat16,
    "U32": torch.uint32, "I32": torch.int32, "F32": torch.float32,
    "U64": torch.uint64, "I64": torch.int64, "F64": torch.float64, "C64": torch.complex64,
}  # fmt: skip
_FORMAT_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class SnapshotFile:
    """A safetensors file in memory, and where each of its tensors lies in there."""

    planned: PlannedFile
    buffer: Tensor
    views: list[Tensor]
    """In the order of `planned.paths`."""

    @property
    def data(self) -> memoryview:
        """The file's bytes."""
        return bytes_of(self.buffer)


class Snapshot:
    """This rank's part of a copy of the state: the files of its shards."""

    def __init__(self, num_shards: int, group: Group) -> None:
        self.files: list[SnapshotFile] = []
        self.plain: Any = None
        self.copy = DeviceCopy(group.device)
        """Until it is done, the files hold the previous state, or parts of both."""
        self._num_shards = num_shards
        self._group = group
        self.plan_digest = ""
        """Of what goes into which file, of which type and shape: all ranks must plan the same."""
        self._planned: list[PlannedFile] = []
        self._sizes: dict[str, int] = {}
        self._kinds: list[tuple[object, ...]] = []

    def take(
        self, state: Any, frozen: Collection[str] = (), parameters: Collection[str] = ()
    ) -> None:
        """Copy the state; when this returns the live tensors may change.

        On a GPU that is not so for `parameters`, the paths of the model's parameters, and for the
        optimizer's state: before they change, `copy.before_update` has to be called. `frozen` are
        the paths of the weights that the training leaves as they are.
        """
        self.plain, tensors = pack(state)
        kinds: list[tuple[object, ...]] = [
            (path, type(tensor), tensor.shape, tensor.dtype, path in frozen)
            for path, tensor in tensors.items()
        ]
        if kinds != self._kinds:
            self._prepare(tensors, frozen)
            self._kinds = kinds
        pairs = {
            path: (view, _local(tensors[path]))
            for file in self.files
            for path, view in zip(file.planned.paths, file.views, strict=True)
        }
        updated = {path for path in pairs if path in parameters or path.startswith(f"{OPTIMIZER}/")}
        self.copy.start(
            [pair for path, pair in pairs.items() if path not in updated],
            [pairs[path] for path in pairs if path in updated],
        )

    def has_nan(self) -> bool:
        """Whether a weight or a buffer of the model is not a number."""
        return any(
            _has_nan(view)
            for file in self.files
            for path, view in zip(file.planned.paths, file.views, strict=True)
            if path.startswith(f"{MODEL}/")
        )

    def small_files(self) -> dict[str, bytes]:
        """What is no tensor, for rank 0 to write: state.json, and which file has which tensor."""
        small = {STATE_JSON: json.dumps(self.plain, indent=1, allow_nan=True).encode()}
        parts: dict[str, dict[str, str]] = {}
        for planned in self._planned:
            for path in planned.paths:
                part, _, name = path.partition("/")
                parts.setdefault(part, {})[name] = planned.name
        for part, weight_map in parts.items():
            if len(set(weight_map.values())) > 1:
                total = sum(self._sizes[f"{part}/{name}"] for name in weight_map)
                index = {"metadata": {"total_size": total}, "weight_map": weight_map}
                small[index_name(part)] = json.dumps(index, indent=1).encode()
        return small

    def _prepare(self, tensors: Mapping[str, Tensor], frozen: Collection[str]) -> None:
        """Decide which file has what, and make the buffers of this rank's."""
        local = {path: _local(tensor) for path, tensor in tensors.items()}
        # All of them, on every rank: what one rank cannot store, all refuse.
        for path, tensor in local.items():
            format_name(path, tensor.dtype)
        self._sizes = {path: tensor.nbytes for path, tensor in local.items()}
        infos = [TensorInfo(path, size, path in frozen) for path, size in self._sizes.items()]
        group = self._group
        in_rows = {path for path, tensor in tensors.items() if is_distributed(tensor)}
        if in_rows and group.world_size > 1:
            for path in in_rows:
                check_rows(path, tensors[path])
            # Each rank has rows of its own: no file has a whole tensor, and there is no index.
            self._planned = []
            of_ranks = [
                plan_row_files(infos, in_rows, rank, group.world_size)
                for rank in range(group.world_size)
            ]
            mine = of_ranks[group.rank]
            plan = [file for files in of_ranks for file in files]
        else:
            self._planned = plan_files(infos, self._num_shards)
            shards = shards_of_rank(self._num_shards, group.world_size, group.rank)
            mine = [planned for planned in self._planned if planned.shard in shards]
            plan = self._planned
        kinds = [(path, tensor.dtype, tuple(tensor.shape)) for path, tensor in tensors.items()]
        self.plan_digest = digest_of(repr((plan, kinds)).encode())
        self.files = [self._allocate(planned, tensors) for planned in mine]

    def _allocate(self, planned: PlannedFile, tensors: Mapping[str, Tensor]) -> SnapshotFile:
        part = planned.paths[0].partition("/")[0]
        metadata = {"format": "pt"}
        rows = {}
        for path in planned.paths:
            tensor = tensors[path]
            if is_distributed(tensor) and self._group.world_size > 1:
                start = rows_here(tensor.shape[0], self._group).start
                rows[path.removeprefix(f"{part}/")] = [start, *tensor.shape]
        if rows:
            metadata[ROWS] = json.dumps(rows)
        file = lay_out(
            {
                path.removeprefix(f"{part}/"): (
                    format_name(path, tensors[path].dtype),
                    tuple(_local(tensors[path]).shape),
                )
                for path in planned.paths
            },
            metadata,
        )
        buffer = _empty(file.size_bytes, pinned=self._group.device.type == "cuda")
        buffer[: len(file.head)] = torch.frombuffer(bytearray(file.head), dtype=torch.uint8)
        views = tensors_in(buffer, file)
        return SnapshotFile(
            planned, buffer, [views[path.removeprefix(f"{part}/")] for path in planned.paths]
        )


def check_savable(state: Any) -> None:
    """Raise WorkloadError, with the place, if a checkpoint cannot have the state."""
    for path, tensor in pack(state)[1].items():
        format_name(path, tensor.dtype)


def tensors_in(buffer: Tensor, file: TensorFile) -> dict[str, Tensor]:
    """The tensors of a file that lies in memory, sharing its memory, by name."""
    found = {}
    for name, place in file.ranges.items():
        dtype = DTYPES[place.dtype]
        flat = buffer[place.start : place.stop]
        if place.start % dtype.itemsize:
            # Others' files need not be aligned.
            flat = flat.clone()
        found[name] = flat.view(dtype).view(place.shape)
    return found


def bytes_of(buffer: Tensor) -> memoryview:
    """The memory of a flat tensor of bytes."""
    return memoryview(buffer.numpy())  # type: ignore[arg-type]  # numpy's stub hides its buffer


def _empty(size_bytes: int, *, pinned: bool) -> Tensor:
    """Memory that begins where a disk's blocks may."""
    memory = torch.empty(size_bytes + BLOCK_BYTES, dtype=torch.uint8, pin_memory=pinned)
    start = -memory.data_ptr() % BLOCK_BYTES
    return memory[start : start + size_bytes]


def _has_nan(tensor: Tensor) -> bool:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point():
        return False
    if tensor.dtype.itemsize == 1:
        tensor = tensor.float()
    # The sum is a number only if all are, but for infinities of both signs; it takes no memory.
    return bool(torch.isnan(tensor.sum())) and bool(torch.isnan(tensor).any())


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_distributed(tensor) else tensor


def format_name(path: str, dtype: torch.dtype) -> str:
    """The type's name in a file. Raises WorkloadError, with the tensor's path, if it has none."""
    if dtype not in _FORMAT_NAMES:
        raise WorkloadError(
            f"the state's tensor {path} is of {dtype}, which safetensors lacks: keep it in another "
            "type (of complex numbers complex64, or torch.view_as_real of it)"
        )
    return _FORMAT_NAMES[dtype]
