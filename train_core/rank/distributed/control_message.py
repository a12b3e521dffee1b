"""The control message: what every rank has to know of a step, in one small all-reduce.

It carries each shard's loss in a slot of its own, so that the sum of all ranks' messages is exact
and each rank adds up the losses in the same order, and the requests of the ranks. It is
sent after the step's last backward pass, travels while gradients and buffers are exchanged, and is
read before the next step's update: what one rank requests, all ranks do after the same step. On a
GPU the messages are copied to the host as soon as they are there, so that who reads them waits for
them alone, while the GPU computes the next step's passes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.distributed as dist

from train_core.rank.distributed.group import Group
from train_core.rank.distributed.host_copy import HostCopy


@dataclass(frozen=True)
class RankRequests:
    """What one rank, or any of several, requests of all."""

    is_due_by_clock: bool = False
    """A checkpoint is due by rank 0's clock."""
    is_retry_due: bool = False
    """A checkpoint failed and another one is to be tried, unscheduled."""
    is_duration_over: bool = False
    """The time that the training may take is over, by rank 0's clock."""
    is_asked_to_stop: bool = False
    """A request from outside asks for an early end."""
    is_busy: bool = False
    """A rank still stores the last checkpoint."""

    def __or__(self, other: RankRequests) -> RankRequests:
        """What either of them requests."""
        return RankRequests(*map(any, zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[bool, ...]:
        """All of them, in their order; `astuple` copies each deeply."""
        return tuple(vars(self).values())


_NUM_REQUESTS = len(fields(RankRequests))


@dataclass(frozen=True)
class Received:
    """The messages of all ranks at one step."""

    loss: float
    """The sum of the step's losses, each times its weight: the mean over its samples by default."""
    requests: RankRequests


class ControlMessage:
    """One step's message, sent when the rank's last forward pass is done."""

    def __init__(self, num_shards: int, group: Group) -> None:
        length = num_shards + _NUM_REQUESTS
        self._values = torch.zeros(length, dtype=torch.float64, device=group.device)
        self._num_shards = num_shards
        self._group = group
        self._work: dist.Work | None = None
        self._received: HostCopy | None = None
        """The sum of all ranks' messages, once it is sent."""

    def add_loss(self, shard: int, weighted_loss: torch.Tensor) -> None:
        """Add a micro-batch's loss times its weight; it stays on the device."""
        self._values[shard].add_(weighted_loss.detach())

    def send(self, requests: RankRequests) -> None:
        """Send the message with this rank's requests."""
        for number, is_requested in enumerate(requests.values(), self._num_shards):
            if is_requested:
                self._values[number] = 1
        if self._group.world_size > 1:
            self._work = dist.all_reduce(self._values, async_op=True)
        if self._work is not None and self._values.is_cuda:
            # The stream waits, and not the host. The weights' update, which comes next there, waits
            # for the other ranks anyway.
            self._work.wait()
        self._received = HostCopy(self._values)

    def wait(self) -> None:
        """Wait for the messages of all ranks. Of a GPU, the stream waits already."""
        if self._work is not None and not self._values.is_cuda:
            self._work.wait()

    def read(self) -> Received:
        """Wait for the messages of all ranks, and give what they say."""
        assert self._received is not None, "read() before send()"
        self.wait()
        values = self._received.tolist()
        losses, requests = values[: self._num_shards], values[self._num_shards :]
        return Received(sum(losses), RankRequests(*(number > 0 for number in requests)))
