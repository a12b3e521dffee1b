"""Tensors of which each rank has some rows: FSDP2's shards, and how they become tensors again.

A file of such a checkpoint says in its own header, under `rows`, which rows it has: for each
tensor the first row and the whole tensor's shape.
"""

from __future__ import annotations

import torch
from torch import Tensor

from train_core.errors import CheckpointError, WorkloadError
from train_core.policy.samples.sharding import rows_of_rank
from train_core.rank.distributed.fsdp import is_distributed
from train_core.rank.distributed.group import Group
from train_core.storage.records.documents import parse_json
from train_core.storage.records.tensor_file import MAX_SIZE
from train_core.text.shown_text import shown_value

ROWS = "rows"


def rows_here(num_rows: int, group: Group) -> range:
    """The rows of a tensor that this rank has."""
    return rows_of_rank(num_rows, group.world_size, group.rank)


def check_rows(path: str, tensor: Tensor) -> None:
    """Raise WorkloadError if a distributed tensor is not cut into rows over all ranks."""
    from torch.distributed.tensor import Shard

    assert is_distributed(tensor)
    if tensor.device_mesh.ndim != 1 or list(tensor.placements) != [Shard(0)]:
        raise WorkloadError(
            f"the state's tensor {path} is distributed as {tensor.placements}: only tensors that "
            "are cut into rows over all workers (Shard(0), fully_shard's default) can be saved"
        )


class RowShards:
    """Collects a tensor's rows from the files that have them: all of them, or this rank's."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, wanted: range) -> None:
        self._shape = shape
        self._wanted = wanted
        self._taken: list[range] = []
        self.tensor = torch.empty((len(wanted), *shape[1:]), dtype=dtype)

    def add(self, start: int, rows: Tensor, path: str) -> None:
        """Take what is wanted of `rows`, whose first one is row `start` of the tensor.

        Raises CheckpointError if they cannot be rows of it.
        """
        fits = rows.dtype == self.tensor.dtype and rows.shape[1:] == self._shape[1:]
        if not fits or not 0 <= start <= start + len(rows) <= self._shape[0]:
            raise CheckpointError(
                f"a file has {rows.dtype} of shape {tuple(rows.shape)} at row {start} of the "
                f"tensor {path!r}, which is {self.tensor.dtype} of shape {tuple(self._shape)}"
            )
        first = max(start, self._wanted.start)
        last = min(start + len(rows), self._wanted.stop)
        if first < last:
            begin = self._wanted.start
            self.tensor[first - begin : last - begin].copy_(rows[first - start : last - start])
            self._taken.append(range(first, last))

    def whole(self, path: str) -> Tensor:
        """The rows that are wanted. Raises CheckpointError if some are in no file, or in two."""
        end = self._wanted.start
        # It stands for the end, so that rows that are missing there are found as well.
        end_of_wanted = range(self._wanted.stop, self._wanted.stop)
        for rows in [*sorted(self._taken, key=lambda taken: taken.start), end_of_wanted]:
            if rows.start != end:
                row, where = min(rows.start, end), "two files" if rows.start < end else "no file"
                raise CheckpointError(f"row {row} of the tensor {path!r} is in {where}")
            end = rows.stop
        return self.tensor


def read_rows(metadata: dict[str, str], file: str) -> dict[str, tuple[int, tuple[int, ...]]]:
    """By tensor the first row that a file has, and the whole shape. Raises CheckpointError."""
    try:
        found = parse_json(
            metadata.get(ROWS, "{}").encode(), f"{file}: its header's rows are no JSON"
        )
        rows = {
            name: (int(start), tuple(map(int, shape))) for name, (start, *shape) in found.items()
        }
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        said = shown_value(metadata[ROWS])
        raise CheckpointError(
            f"{file}: its header's rows are {said}, and not a first row and a shape for each tensor"
        ) from error
    for name, (start, shape) in rows.items():
        if not shape or not all(0 <= number < MAX_SIZE for number in (start, *shape)):
            raise CheckpointError(
                f"{file}: its header says that it has the tensor {name!r} from row {start} on, and "
                f"that the whole tensor has the shape {shape}: a number is negative or too large, "
                "or the shape is empty"
            )
    return rows
