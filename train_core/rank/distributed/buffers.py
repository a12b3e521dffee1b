"""BatchNorm statistics and other buffers: every rank ends a step with those of shard 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train_core.errors import WorkloadError
from train_core.rank.distributed.group import Group

_Place = tuple[dict[str, Tensor | None], str]
"""Where a module has a buffer: its own dict of them, and the buffer's name there."""


_Found = list[tuple[_Place, Tensor | None]]
"""All buffers, with those that are None."""


@dataclass(frozen=True)
class _Taken:
    """Buffers with their values at one moment."""

    places: list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]]
    """Each module's own dict of buffers that has any, and what was in it."""
    buffers: list[Tensor]
    values: list[Tensor]
    """A copy of each."""


class _Described(NamedTuple):
    """What a rank has to know of a buffer to have the like of it."""

    name: str
    """Its path in the model."""
    is_persistent: bool
    form: tuple[torch.Size, torch.dtype] | None
    """None: the buffer is None."""

    @property
    def num_bytes(self) -> int:
        """The length of its values."""
        return 0 if self.form is None else self.form[0].numel() * self.form[1].itemsize


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

    All ranks send and receive by the list of buffers that rank 0 described last, whatever they
    have themselves, so that their lengths always agree. In the byte behind the values rank 0 says
    whether its buffers are others by now: then a new list follows, and the values after it. After
    a first step of a model without buffers nothing is sent any more, and none may be registered.
    """

    def __init__(self, model: nn.Module, num_local_shards: int, group: Group) -> None:
        self._model = model
        self._group = group
        self._has_several = num_local_shards > 1
        is_undone = group.world_size > 1 and group.device.type == "cpu"
        self._keeps_start = self._has_several or is_undone
        self._start = _Taken([], [], [])
        self._of_shard_0 = _Taken([], [], [])
        self._described: list[_Described] = []
        """Rank 0's buffers, in the order in which their values are sent."""
        self._seen: list[tuple[object, ...]] = []
        """This rank's buffers when they were last those that are described."""
        self._order: list[int] = []
        """Where each of those that are described is among this rank's buffers."""
        self._sent: dist.Work | None = None
        self._is_described = False
        self._flat, self._views = self._memory()
        """The values of what is described, with the byte behind them; each one's place there."""

    def begin_passes(self) -> None:
        """Keep the values for `undo_passes`, and for each shard to start from."""
        if self._keeps_start:
            self._start = self._take()

    def undo_passes(self) -> None:
        """Take the values again that the buffers had before the passes that began last."""
        self._put_back(self._start)

    def begin_shard(self, *, is_first_here: bool) -> None:
        """Start a shard from the step's first values."""
        if self._has_several and not is_first_here:
            self._put_back(self._start)

    def end_shard(self, shard: int) -> None:
        """Remember the values if they are the ones to keep."""
        if self._has_several and shard == 0:
            self._of_shard_0 = self._take()

    @torch.no_grad()
    def send(self) -> None:
        """Start to send shard 0's values to all ranks."""
        if self._has_several and self._group.is_rank0:
            self._put_back(self._of_shard_0)
        if self._group.world_size == 1:
            return
        if self._is_described and not self._described:
            self._refuse_new()
            return
        if self._group.is_rank0:
            found = self._found()
            is_other = not self._is_described or _seen(found) != self._seen
            self._flat[-1] = is_other
            if not is_other:
                self._copy(found, is_sender=True)
        self._sent = dist.broadcast(self._flat, src=0, async_op=True)
        assert self._sent is not None

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for shard 0's values and take them. Raises WorkloadError if they have no place."""
        if self._sent is None:
            return
        work, self._sent = self._sent, None
        work.wait()
        is_rank0 = self._group.is_rank0
        if self._flat[-1]:
            self._described = self._group.broadcast_from_rank0(self._describe() if is_rank0 else [])
            self._is_described = True
            self._become()
            self._flat, self._views = self._memory()
            if is_rank0:
                self._copy(self._found(), is_sender=True)
            dist.broadcast(self._flat, src=0)
        if not is_rank0:
            found = self._found()
            if _seen(found) != self._seen:
                self._become()
                found = self._found()
            self._copy(found, is_sender=False)

    def _refuse_new(self) -> None:
        """Raise WorkloadError for a buffer of a model that had none in the first step."""
        for (_, name), _ in self._found():
            raise WorkloadError(
                f"a buffer {name!r} was registered after the first step of a model that had none: "
                "with several workers, register it in `model()`, or in the first forward pass"
            )

    def _memory(self) -> tuple[Tensor, list[Tensor]]:
        """Memory for the values of what is described, and for the byte behind them; its parts."""
        length = sum(one.num_bytes for one in self._described) + 1
        flat = torch.zeros(length, dtype=torch.uint8, device=self._group.device)
        views, offset = [], 0
        for one in self._described:
            if one.form is not None:
                shape, dtype = one.form
                views.append(flat[offset : offset + one.num_bytes].view(dtype).view(shape))
                offset += one.num_bytes
        return flat, views

    def _copy(self, found: _Found, *, is_sender: bool) -> None:
        """Copy the values of this rank's buffers to the memory that is sent, or from there."""
        there = (found[where][1] for where in self._order)
        buffers = [buffer for buffer in there if buffer is not None]
        if buffers:
            pair = (self._views, buffers) if is_sender else (buffers, self._views)
            torch._foreach_copy_(*pair)

    def _describe(self) -> list[_Described]:
        """This rank's buffers: the larger types first, so that all lie where their type may."""
        described = [
            _Described(
                _path_of(path, name),
                name not in module._non_persistent_buffers_set,  # noqa: SLF001
                None if buffer is None else (buffer.shape, buffer.dtype),
            )
            for path, module in self._model.named_modules()
            for name, buffer in module._buffers.items()  # noqa: SLF001
        ]
        return sorted(described, key=lambda one: -(one.form[1].itemsize if one.form else 0))

    def _become(self) -> None:
        """Give this rank's model the buffers that are described; the values come later."""
        names = {one.name for one in self._described}
        paths = {id(m._buffers): path for path, m in self._model.named_modules()}  # noqa: SLF001
        for (of_module, name), _ in self._found():
            if _path_of(paths[id(of_module)], name) not in names:
                del of_module[name]
        for one in self._described:
            self._become_one(one)
        found = self._found()
        own = [_path_of(paths[id(of_module)], name) for (of_module, name), _ in found]
        where = {name: number for number, name in enumerate(own)}
        self._order = [where[one.name] for one in self._described]
        self._seen = _seen(found)

    def _become_one(self, one: _Described) -> None:
        path, _, name = one.name.rpartition(".")
        try:
            module = self._model.get_submodule(path)
        except AttributeError:
            raise WorkloadError(
                f"rank 0's model has a buffer {one.name!r}, and this rank's has no module "
                f"{path!r}: make all modules in `model()`, and none in a forward pass"
            ) from None
        buffers = module._buffers  # noqa: SLF001
        current = buffers.get(name)
        if name in buffers and one.form == (
            None if current is None else (current.shape, current.dtype)
        ):
            return
        value = None
        if one.form is not None:
            shape, dtype = one.form
            device = self._group.device if current is None else current.device
            value = torch.empty(shape, dtype=dtype, device=device)
        # What is no buffer yet would be in its way.
        module.__dict__.pop(name, None)
        module.register_buffer(name, value, persistent=one.is_persistent)

    @torch.no_grad()
    def _take(self) -> _Taken:
        places = [(own, dict(own)) for own in self._dicts() if own]
        buffers = [one for _, had in places for one in had.values() if one is not None]
        return _Taken(places, buffers, [buffer.clone() for buffer in buffers])

    @torch.no_grad()
    def _put_back(self, taken: _Taken) -> None:
        """Give every module the buffers that it had, with the values that they had."""
        for own in self._dicts():
            own.clear()
        for own, had in taken.places:
            own.update(had)
        for buffer, value in zip(taken.buffers, taken.values, strict=True):
            # A forward pass may resize one in place, as observers of quantization do.
            if buffer.shape != value.shape:
                buffer.resize_(value.shape)
        if taken.values:
            torch._foreach_copy_(taken.buffers, taken.values)

    def _dicts(self) -> list[dict[str, Tensor | None]]:
        """Each module's own dict of buffers."""
        return [module._buffers for module in modules_of(self._model)]  # noqa: SLF001 (where torch has them)

    def _found(self) -> _Found:
        """The buffers of all modules."""
        return [((own, name), one) for own in self._dicts() for name, one in own.items()]


def _seen(found: _Found) -> list[tuple[object, ...]]:
    """What differs if buffers have another place or form."""
    return [
        (id(of_module), name, None if buffer is None else (buffer.shape, buffer.dtype))
        for (of_module, name), buffer in found
    ]


def _path_of(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
