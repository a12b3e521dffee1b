"""The control word: what every rank has to know of a step, in one small all-reduce.

It carries each shard's loss in a slot of its own, so that the sum of all ranks' words is exact
and each rank adds up the losses in the same order, and the wishes of any rank. The word of a
step travels while backward computes and is read before the next step: whoever wants something
has all ranks do it at the same step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from train_core.engine.distributed.group import Group

_NUM_WISHES = 5


@dataclass(frozen=True)
class Word:
    """What all ranks said at one step."""

    loss: float
    """The step's mean loss over its samples."""
    wants_checkpoint: bool
    wants_retry: bool
    """Whether a checkpoint failed and another one is to be tried, out of turn."""
    is_time_up: bool
    """Whether the time that the training may take is over."""
    is_asked_to_stop: bool
    """Whether somebody outside asked for an early end."""
    is_busy: bool
    """Whether a rank still stores the last checkpoint."""


class ControlMessage:
    """One step's word, sent when the rank's last forward pass is done."""

    def __init__(self, num_shards: int, group: Group) -> None:
        self._word = torch.zeros(num_shards + _NUM_WISHES, dtype=torch.float64, device=group.device)
        self._num_shards = num_shards
        self._group = group
        self._work: dist.Work | None = None

    def add_loss(self, shard: int, weighted_loss: torch.Tensor) -> None:
        """Add a micro-batch's loss times its weight; it stays on the device."""
        self._word[shard] += weighted_loss.detach()

    def send(
        self,
        *,
        wants_checkpoint: bool,
        wants_retry: bool,
        is_time_up: bool,
        is_asked_to_stop: bool,
        is_busy: bool,
    ) -> None:
        """Send the word with this rank's wishes."""
        wishes = [wants_checkpoint, wants_retry, is_time_up, is_asked_to_stop, is_busy]
        self._word[self._num_shards :] = torch.tensor(wishes, dtype=self._word.dtype)
        if self._group.world_size > 1:
            self._work = dist.all_reduce(self._word, async_op=True)

    def read(self) -> Word:
        """Wait for all ranks' words."""
        if self._work is not None:
            self._work.wait()
        told = self._word.tolist()
        losses, wishes = told[: self._num_shards], told[self._num_shards :]
        return Word(sum(losses), *(wish > 0 for wish in wishes))
