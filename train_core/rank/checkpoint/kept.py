"""What a process keeps of an attempt that broke, and how the next attempt goes on from it.

When a rank dies, the others still have the whole state after their last step. The next attempt
runs in the same processes, with another one in the dead rank's place. Its ranks offer what they
have; the greatest step wins, and all that have it must have the same bits. The lowest of them gives
its state to all, packed as in a checkpoint, with the journal's entries that no commit covers.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from train_core.policy.checkpoints.layout import BUFFERS, MODEL, OPTIMIZER
from train_core.rank.checkpoint.journal_buffer import Uncommitted
from train_core.rank.checkpoint.packing import pack, unpack
from train_core.rank.checkpoint.snapshot import bytes_of, format_name, tensors_in
from train_core.rank.distributed.group import Group
from train_core.storage.objects.digest_algorithm import new_digest
from train_core.storage.records.journal import Entry
from train_core.storage.records.names import CheckpointName
from train_core.storage.records.tensor_file import lay_out

_ALIKE = (MODEL, BUFFERS, OPTIMIZER, "schedule", "followed", "progress")
"""The parts of the state that all ranks hold alike; of the progress, all but the clock."""
_CLOCK = "elapsed_s"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Offer:
    """The step and epoch whose state a rank has, and the digest of what all ranks hold alike."""

    step: int
    epoch: int
    digest: str


@dataclass(frozen=True)
class Kept:
    """The state after the last whole step of an attempt that broke."""

    state: dict[str, Any]
    """As `TrainingState.capture` gives it; nobody changes it any more."""
    known_at: int
    """The number of steps after which streams had the positions that are in it."""
    uncommitted: Uncommitted
    must_be_committed: CheckpointName | None = None
    """The newest checkpoint that was begun, if it has a validation: the choice of the best counts
    it."""

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return int(self.state["progress"]["step"])

    def offer(self, newest: CheckpointName | None) -> Offer | None:
        """What to offer beside the newest commit; None: that commit is to be gone on from."""
        if self.uncommitted.after(newest) is None:
            return None
        due = self.must_be_committed
        is_lost = due is not None and (newest is None or newest < due)
        # At its own step it can be taken again.
        if is_lost and due is not None and due.step < self.step:
            return None
        return Offer(self.step, int(self.state["progress"]["epoch"]), self._digest())

    def _digest(self) -> str:
        alike = {part: self.state[part] for part in _ALIKE if part in self.state}
        alike["progress"] = {k: v for k, v in alike["progress"].items() if k != _CLOCK}
        plain, tensors = pack(alike)
        digest = new_digest()
        digest.update(json.dumps(plain, sort_keys=True).encode())
        for name in sorted(tensors):
            digest.update(bytes_of(_flat_bytes(tensors[name])))
        return digest.hexdigest()


@dataclass(frozen=True)
class Resumed:
    """What all ranks go on from."""

    state: dict[str, Any]
    known_at: int
    """As of `Kept`."""
    entries: list[Entry]
    """Those after the newest commit."""


def kept_state(kept: Kept | None, newest: CheckpointName | None, group: Group) -> Resumed | None:
    """The state of the greatest step that a rank has kept.

    None, on all ranks, if no rank has one, or if two that have it differ in any bit. All ranks call
    it together.
    """
    offers = dict(enumerate(group.gather(kept and kept.offer(newest))))
    reached = {rank: (one.step, one.epoch) for rank, one in offers.items() if one}
    if not reached:
        return None
    most = step, _ = max(reached.values())
    best = {rank: one.digest for rank, one in offers.items() if one and reached[rank] == most}
    if len(set(best.values())) > 1:
        if group.is_rank0:
            _log.warning(
                "ranks %s have different states after step %d: the training goes on from the "
                "newest checkpoint",
                ", ".join(map(str, best)),
                step,
            )
        return None
    return _hand_over(kept, newest, group, source=min(best))


def _hand_over(
    kept: Kept | None, newest: CheckpointName | None, group: Group, *, source: int
) -> Resumed:
    """What rank `source` has kept, on all ranks."""
    sent: Any = None
    tensors = dict[str, Tensor]()
    if group.rank == source:
        assert kept is not None, "it has made an offer"
        plain, tensors = pack(kept.state)
        kinds = {name: (format_name(name, t.dtype), tuple(t.shape)) for name, t in tensors.items()}
        sent = plain, kinds, kept.known_at, kept.uncommitted.after(newest)
    plain, kinds, known_at, entries = group.broadcast(sent, source=source)
    file = lay_out(kinds, {})
    buffer = torch.empty(file.size_bytes, dtype=torch.uint8)
    views = tensors_in(buffer, file)
    for name, tensor in tensors.items():
        views[name].copy_(tensor)
    group.broadcast_bytes(buffer, source=source)
    return Resumed(unpack(plain, views), known_at, entries)


def _flat_bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1).contiguous()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(torch.uint8)
