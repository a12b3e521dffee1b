"""The ranks that train together, and the few things that they tell each other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def use_deterministic_algorithms(*, wanted: bool) -> None:
    """Let CUDA compute the same bits every time; an operation that cannot raises RuntimeError."""
    # cuBLAS asks for it, before its first call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted)
    torch.backends.cudnn.benchmark = not wanted


@dataclass(frozen=True)
class Group:
    """This process's place among the ranks; a process alone is a group of one."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def current(cls, *, uses_gpu: bool = False) -> Group:
        """The group that Ray Train or torchrun has set up, or this process alone.

        The device is decided by what was asked, never by how many ranks there are.
        """
        rank, world_size = 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, world_size = dist.get_rank(), dist.get_world_size()
        if uses_gpu:
            return cls(rank, world_size, torch.device("cuda", torch.cuda.current_device()))
        return cls(rank, world_size, torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0: the one that writes to storage."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]  # all are filled

    def from_first(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]
