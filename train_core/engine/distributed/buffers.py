"""BatchNorm statistics and other buffers: every rank ends a step with those of shard 0."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train_core.engine.distributed.group import Group


class Buffers:
    """Keeps shard 0's buffers, as DDP keeps rank 0's.

    Each shard's forward passes start from the step's first values, whichever rank computes
    them after which other shard.
    """

    def __init__(self, model: nn.Module, num_local_shards: int, group: Group) -> None:
        self._buffers = list(model.buffers())
        self._group = group
        self._has_several = num_local_shards > 1
        self._start: list[Tensor] = []
        self._of_shard_0: list[Tensor] = []
        self._sent: list[tuple[dist.Work, list[Tensor], Tensor]] = []

    def begin_shard(self, shard: int, *, is_first_here: bool) -> None:
        """Start the shard from the step's first values."""
        if not self._buffers or not self._has_several:
            return
        if is_first_here:
            self._start = [b.clone() for b in self._buffers]
        else:
            torch._foreach_copy_(self._buffers, self._start)

    def end_shard(self, shard: int) -> None:
        """Remember the values if they are the ones to keep."""
        if self._buffers and self._has_several and shard == 0:
            self._of_shard_0 = [b.clone() for b in self._buffers]

    def send(self) -> None:
        """Start to send shard 0's values to all ranks."""
        if not self._buffers:
            return
        if self._has_several and self._group.is_rank0:
            torch._foreach_copy_(self._buffers, self._of_shard_0)
        if self._group.world_size == 1:
            return
        for dtype in sorted({b.dtype for b in self._buffers}, key=str):
            same = [b for b in self._buffers if b.dtype == dtype]
            flat = torch.cat([b.reshape(-1) for b in same])
            work = dist.broadcast(flat, src=0, async_op=True)
            assert work is not None
            self._sent.append((work, same, flat))

    def finish(self) -> None:
        """Wait for shard 0's values and take them."""
        for work, same, flat in self._sent:
            work.wait()
            if not self._group.is_rank0:
                parts = flat.split([b.numel() for b in same])
                torch._foreach_copy_(same, [p.view_as(b) for p, b in zip(parts, same, strict=True)])
        self._sent.clear()
