"""BatchNorm statistics and other buffers: every rank ends a step with those of shard 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train_core.engine.distributed.group import Group

_Place = tuple[dict[str, Tensor | None], str]
"""Where a module has a buffer: its own dict of them, and the buffer's name there."""


@dataclass(frozen=True)
class _Taken:
    """Buffers with their values at one moment."""

    found: list[tuple[_Place, Tensor]]
    values: list[Tensor]


def modules_of(model: nn.Module) -> Iterable[nn.Module]:
    """All modules, each once: `Module.modules` takes five times as long, and this is every step."""
    found: dict[int, nn.Module] = {}
    waiting: list[nn.Module | None] = [model]
    for module in waiting:
        # The list grows meanwhile.
        if module is not None and id(module) not in found:
            found[id(module)] = module
            waiting.extend(module._modules.values())  # noqa: SLF001 (where torch has them)
    return found.values()


class Buffers:
    """Keeps shard 0's buffers, as DDP keeps rank 0's.

    Each shard's forward passes start from the step's first values, whichever rank computes
    them after which other shard. Buffers are looked up at each use: a forward pass may assign
    them anew, or register them.
    """

    def __init__(self, model: nn.Module, num_local_shards: int, group: Group) -> None:
        self._model = model
        self._group = group
        self._has_several = num_local_shards > 1
        self._start = _Taken([], [])
        self._of_shard_0 = _Taken([], [])
        self._sent: list[tuple[dist.Work, list[Tensor], Tensor]] = []

    def begin_shard(self, *, is_first_here: bool) -> None:
        """Start a shard from the step's first values."""
        if not self._has_several:
            return
        if is_first_here:
            self._start = self._take()
        else:
            self._put_back(self._start)

    def end_shard(self, shard: int) -> None:
        """Remember the values if they are the ones to keep."""
        if self._has_several and shard == 0:
            self._of_shard_0 = self._take()

    def send(self) -> None:
        """Start to send shard 0's values to all ranks."""
        if self._has_several and self._group.is_rank0:
            self._put_back(self._of_shard_0)
        if self._group.world_size == 1:
            return
        buffers = [buffer for _, buffer in self._found()]
        for dtype in sorted({b.dtype for b in buffers}, key=str):
            same = [b for b in buffers if b.dtype == dtype]
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

    @torch.no_grad()
    def _take(self) -> _Taken:
        found = list(self._found())
        return _Taken(found, [buffer.clone() for _, buffer in found])

    @torch.no_grad()
    def _put_back(self, taken: _Taken) -> None:
        """Give every module the buffers that it had, with the values that they had."""
        kept = {(id(of_module), name) for (of_module, name), _ in taken.found}
        for (of_module, name), _ in list(self._found()):
            if (id(of_module), name) not in kept:
                del of_module[name]
        for (of_module, name), buffer in taken.found:
            of_module[name] = buffer
        if taken.found:
            torch._foreach_copy_([buffer for _, buffer in taken.found], taken.values)

    def _found(self) -> Iterator[tuple[_Place, Tensor]]:
        """The buffers of all modules."""
        for module in modules_of(self._model):
            for name, buffer in module._buffers.items():  # noqa: SLF001 (where torch has them)
                if buffer is not None:
                    yield (module._buffers, name), buffer  # noqa: SLF001
