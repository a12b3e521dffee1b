"""The ranks that train together, and the small values that they exchange."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from train_core.config import TrainConfig
from train_core.errors import AttemptLostError, EvertrainError

_PIECE_BYTES = 64 * 2**20

T = TypeVar("T")


def follows_from_another_end(error: BaseException) -> bool:
    """Whether another process's end is what broke this rank, and no bug of the user's."""
    if isinstance(error, ConnectionError) or is_of_another_rank(error):
        return True
    # The DataLoader has no type of its own.
    return type(error) is RuntimeError and "DataLoader worker (pid" in str(error)


def is_of_another_rank(error: BaseException) -> bool:
    """Whether another rank's end is what broke this one, which is as good as before."""
    if isinstance(error, (AttemptLostError, dist.DistError)):
        return True
    # gloo has no type of its own, and names the place in its source.
    return type(error) is RuntimeError and "/gloo/" in str(error)


def use_deterministic_algorithms(
    config: TrainConfig, device: torch.device, step_rules: int
) -> None:
    """Compute the same bits every time; an operation that cannot raises RuntimeError.

    A thread alone on a CPU does so in any case, and so do the runs that began without (`step_rules`
    1), as far as they do.
    """
    if device.type == "cuda":
        # cuBLAS asks for it, before its first call.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = not config.deterministic
        set_deterministic(mode=config.deterministic)
        return
    has_choice = config.threads_per_worker > 1 and step_rules > 1
    has_choice = has_choice and config.has_effect("deterministic")
    set_deterministic(mode=config.deterministic and has_choice)
    # It costs time, and finds only what reads memory that nothing was written to.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # its stub lacks it


def set_deterministic(*, mode: bool) -> None:
    """Have torch use deterministic algorithms, or those that it chooses by itself.

    torch imports its compiler as it is told, which a process without an optimizer has not loaded:
    0.7 s, in vain where nothing changes.
    """
    if mode or torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(mode)


@dataclass(frozen=True)
class Group:
    """This process's place among the ranks; a process alone is a group of one."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def current(cls, *, uses_gpu: bool = False) -> Group:
        """The group that this process has joined, or this process alone.

        The device is decided by what was asked, never by how many ranks there are.
        """
        rank, world_size = 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, world_size = dist.get_rank(), dist.get_world_size()
        if uses_gpu:
            return cls(rank, world_size, torch.device("cuda", torch.cuda.current_device()))
        return cls(rank, world_size, torch.device("cpu"))

    @property
    def is_rank0(self) -> bool:
        """Whether this is rank 0: the one that commits."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]  # all are filled

    def call_on_rank0(self, call: Callable[[], T]) -> T:
        """What rank 0's `call()` gives, on every rank; what it raises is raised on every rank."""
        found: T | None = None
        error: EvertrainError | OSError | None = None
        if self.is_rank0:
            try:
                found = call()
            except (EvertrainError, OSError) as raised:
                error = raised
        found, error = self.broadcast_from_rank0((found, error))
        if error is not None:
            raise error
        return found  # type: ignore[return-value]  # it is what rank 0's call gave

    def raise_if_any_failed(self, call: Callable[[], T]) -> T:
        """What this rank's `call()` gives, if those of all ranks succeed.

        The first error of any rank is raised on every rank.
        """
        found: T | None = None
        error: EvertrainError | OSError | None = None
        try:
            found = call()
        except (EvertrainError, OSError) as raised:
            error = raised
        for first in self.gather(error):
            if first is not None:
                raise first
        return found  # type: ignore[return-value]  # this rank's call did not raise

    def broadcast_bytes(self, buffer: Tensor, *, source: int) -> None:
        """Fill `buffer`, bytes in main memory, with those of rank `source`."""
        if self.world_size == 1:
            return
        for piece in buffer.split(_PIECE_BYTES):
            sent = piece.to(self.device)
            dist.broadcast(sent, src=source)
            piece.copy_(sent)

    def broadcast_from_rank0(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        return self.broadcast(value, source=0)

    def broadcast(self, value: T, *, source: int) -> T:
        """The value of rank `source`, on every rank."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=source)
        return values[0]
