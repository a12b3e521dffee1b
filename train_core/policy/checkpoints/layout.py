"""Which tensor of a checkpoint goes into which file, and which rank writes it.

The files follow from the state and the number of shards alone, never from the number of ranks:
a run that was interrupted and one that was not have the same files. Each file belongs to a
shard, and the rank that computes the shard writes it, so the ranks share the work.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

MODEL, BUFFERS, OPTIMIZER, WORKLOAD = "model", "buffers", "optimizer", "workload"

_TENSOR_FILE = re.compile(r"(.+?)(?:-\d{5,}-of-\d{5,})?\.safetensors")


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the state: its path, `part/name`, and what matters for its place."""

    path: str
    size_bytes: int
    is_frozen: bool = False
    """Whether it is a weight that the training leaves as it is."""

    @property
    def part(self) -> str:
        """The part of the state that it belongs to."""
        return self.path.partition("/")[0]


@dataclass(frozen=True)
class PlannedFile:
    """A safetensors file, the tensors in it, and the shard whose rank writes it."""

    name: str
    paths: tuple[str, ...]
    shard: int
    is_frozen: bool = False


def plan_files(tensors: Sequence[TensorInfo], num_shards: int) -> list[PlannedFile]:
    """The files of a checkpoint.

    The model is one file, or two if some of its weights are frozen: the frozen ones never change,
    and are stored once. The optimizer, twice as large, is spread over the shards so that all have
    about the same number of bytes to write. Every further part is a file.
    """
    parts: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        parts.setdefault(tensor.part, []).append(tensor)
    loads = [0] * num_shards
    planned: list[PlannedFile] = []

    def add(name: str, members: Sequence[TensorInfo], shard: int, *, is_frozen: bool) -> None:
        paths = tuple(member.path for member in members)
        planned.append(PlannedFile(name, paths, shard, is_frozen))

    optimizer = parts.pop(OPTIMIZER, [])
    for part in sorted(parts, key=lambda name: (name != MODEL, name)):
        groups = [
            [t for t in parts[part] if t.is_frozen],
            [t for t in parts[part] if not t.is_frozen],
        ]
        names = file_names(part, sum(map(bool, groups)))
        for group in filter(None, groups):
            # The model is rank 0's: it looks for NaN in the weights before it commits.
            shard = 0 if part == MODEL else loads.index(min(loads))
            loads[shard] += sum(t.size_bytes for t in group)
            add(names.pop(0), group, shard, is_frozen=group[0].is_frozen)
    spread = _spread(optimizer, loads)
    names = file_names(OPTIMIZER, len(spread))
    for (shard, group), name in zip(spread.items(), names, strict=True):
        add(name, group, shard, is_frozen=False)
    return planned


def plan_row_files(
    tensors: Sequence[TensorInfo], in_rows: Collection[str], rank: int, world_size: int
) -> list[PlannedFile]:
    """The files of one rank where each has some rows of the tensors called `in_rows`.

    A part that has such tensors is a file a rank, or two with frozen weights; rank 0 also has
    all that is not cut. A part without any is one file, of rank 0.
    """
    planned = []
    for part in sorted({tensor.part for tensor in tensors}):
        members = [t for t in tensors if t.part == part]
        is_cut = any(t.path in in_rows for t in members)
        groups = [
            [t for t in members if t.is_frozen == is_frozen]
            for is_frozen in (True, False)
            if any(t.is_frozen == is_frozen for t in members)
        ]
        ranks = world_size if is_cut else 1
        names = file_names(part, ranks * len(groups))
        for index, group in enumerate(groups):
            paths = tuple(t.path for t in group if rank == 0 or t.path in in_rows)
            if paths:
                name = names[index * ranks + rank]
                planned.append(PlannedFile(name, paths, rank, group[0].is_frozen))
    return planned


def assign(sizes: Sequence[int], loads: Sequence[int]) -> list[int]:
    """The worker of each piece of work, by its index; the workers have `loads` already.

    The largest piece is assigned first, each to the worker that has the least.
    """
    loads = list(loads)
    taken = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        taken[index] = loads.index(min(loads))
        loads[taken[index]] += sizes[index]
    return taken


def part_of(file: str) -> str | None:
    """The part that a file's tensors belong to, or None if it is not a file of tensors."""
    match = _TENSOR_FILE.fullmatch(file)
    return match[1] if match else None


def index_name(part: str) -> str:
    """The name of the JSON file that says which of a part's files has which tensor."""
    return f"{part}.safetensors.index.json"


def file_names(part: str, count: int) -> list[str]:
    """The names of a part's files, as published models have them."""
    if count == 1:
        return [f"{part}.safetensors"]
    return [f"{part}-{index + 1:05d}-of-{count:05d}.safetensors" for index in range(count)]


def _spread(tensors: Sequence[TensorInfo], loads: Sequence[int]) -> dict[int, list[TensorInfo]]:
    """The tensors of each shard that gets some, next to what the shards have to write already."""
    shards = assign([t.size_bytes for t in tensors], loads)
    return {
        shard: [t for t, taker in zip(tensors, shards, strict=True) if taker == shard]
        for shard in sorted(set(shards))
    }
