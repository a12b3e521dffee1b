"""Tensors of which each rank has some rows: FSDP2's shards, and how they become tensors again.

A file of such a checkpoint says in its own header, under `rows`, which rows it has: for each
tensor the first row and the whole tensor's shape.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from train_core.engine.group import Group
from train_core.errors import CheckpointError, WorkloadError
from train_core.policy.sharding import rows_of_rank

ROWS = "rows"


def rows_here(num_rows: int, group: Group) -> range:
    """The rows of a tensor that this rank has."""
    return rows_of_rank(num_rows, group.world_size, group.rank)


def check_rows(path: str, tensor: Tensor) -> None:
    """Raise WorkloadError if a distributed tensor is not cut into rows over all ranks."""
    assert isinstance(tensor, DTensor)
    if tensor.device_mesh.ndim != 1 or list(tensor.placements) != [Shard(0)]:
        raise WorkloadError(
            f"the state's tensor {path} is distributed as {tensor.placements}: only tensors that "
            "are cut into rows over all workers (Shard(0), fully_shard's default) can be saved"
        )


class Pieces:
    """Collects a tensor's rows from the files that have them: all of them, or this rank's."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, wanted: range) -> None:
        self._wanted = wanted
        self._num_missing = len(wanted)
        self.tensor = torch.empty((len(wanted), *shape[1:]), dtype=dtype)

    def add(self, start: int, rows: Tensor) -> None:
        """Take what is wanted of `rows`, whose first one is row `start` of the tensor."""
        first = max(start, self._wanted.start)
        last = min(start + len(rows), self._wanted.stop)
        if first < last:
            begin = self._wanted.start
            self.tensor[first - begin : last - begin].copy_(rows[first - start : last - start])
            self._num_missing -= last - first

    def whole(self, path: str) -> Tensor:
        """The rows that are wanted. Raises CheckpointError if some are in no file."""
        if self._num_missing:
            raise CheckpointError(f"{self._num_missing} rows of the tensor {path!r} are missing")
        return self.tensor


def read_rows(metadata: dict[str, str], file: str) -> dict[str, tuple[int, tuple[int, ...]]]:
    """By tensor the first row that a file has, and the whole shape. Raises CheckpointError."""
    try:
        found: dict[str, Any] = json.loads(metadata.get(ROWS, "{}"))
        rows = {
            name: (int(start), tuple(map(int, shape))) for name, (start, *shape) in found.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} does not say which rows it has: {error}") from error
    return rows
