"""The one reducer: gradients summed over shards in one fixed binary tree, on any ranks.

Which rank computes a shard depends on the number of ranks; in which order the shards'
gradients are added does not (`policy.samples.sharding`). Each rank adds up the aligned subtrees
that it has, and the ranks exchange only those. Gradients live in flat buckets that are sent while
backward still computes the others.

Two ranks with one subtree each use a plain all-reduce: a + b is the tree. Otherwise, each rank
receives one slice of every subtree's sum, adds the slices in the tree's order, and all gather
the results: the traffic of a ring, in an order of our own.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train_core.engine.distributed.group import Group
from train_core.policy.samples.sharding import Node, shards_of_rank, siblings, tree_cover, tree_sum

# What is left to send when backward ends is at most one bucket, so a bucket is small.
BUCKET_BYTES = 4 * 2**20


class Reducer:
    """Collects each shard's gradients and leaves their sum in every parameter's `grad`.

    Per step: for each of the rank's shards in order, `begin_shard`, its backward passes, with
    `expect_last_backward` before the last one, and `end_shard`; then `finish`.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], num_shards: int, group: Group) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        self._root = Node(0, num_shards)
        self._shards = shards_of_rank(num_shards, group.world_size, group.rank)
        self._exchange = _exchange_for(num_shards, group)
        # A single shard's gradient is the sum: autograd's own tensors are used as they are.
        self._is_trivial = num_shards == 1
        self._buckets = (
            [] if self._is_trivial else _make_buckets(self._parameters, num_shards, group)
        )
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        self._shard = 0
        self._listening = False
        self._next = 0
        if not self._is_trivial:
            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def begin_shard(self, shard: int) -> None:
        """The backward passes that follow belong to `shard`."""
        self._shard = shard
        self._next = 0
        self._listening = False
        for bucket in self._buckets:
            bucket.num_missing = len(bucket.parameters)
        for parameter in self._parameters:
            parameter.grad = None

    def expect_last_backward(self) -> None:
        """The next backward pass is the shard's last: send each bucket when it is complete."""
        self._listening = True

    def end_shard(self) -> None:
        """The shard's backward passes are done; parameters that none reached count as zero."""
        self._listening = False
        while self._next < len(self._buckets):
            self._close(self._buckets[self._next])

    def finish(self) -> None:
        """Wait for the sums and put them into the parameters' `grad`."""
        for bucket in self._buckets:
            bucket.wait(self._root)

    def close(self) -> None:
        """End the thread that exchanges."""
        self._exchange.close()

    def _on_gradient(self, parameter: Tensor) -> None:
        if not self._listening:
            return
        self._bucket_of[id(parameter)].num_missing -= 1
        # Always in the same order, on every rank: collectives have to match.
        while self._next < len(self._buckets) and self._buckets[self._next].num_missing == 0:
            self._close(self._buckets[self._next])

    def _close(self, bucket: _Bucket) -> None:
        self._next += 1
        bucket.add_shard(self._shard)
        if self._shard == self._shards[-1]:
            bucket.sent = self._exchange.start(bucket.sums)


class _Bucket:
    """Parameters of one type whose gradients travel together, in one flat tensor."""

    def __init__(self, parameters: list[nn.Parameter], num_shards: int, world_size: int) -> None:
        self.parameters = parameters
        self.num_missing = 0
        self.sums: dict[Node, Tensor] = {}
        self.sent: _Sent | None = None
        self._siblings = siblings(num_shards)
        self._free: list[Tensor] = []
        size = sum(p.numel() for p in parameters)
        # Every rank adds one slice, so the length is a multiple of their number.
        self._length = -(-size // world_size) * world_size

    def add_shard(self, shard: int) -> None:
        """Move the parameters' gradients into the tree, adding up what is complete."""
        flat = self._free.pop() if self._free else self.parameters[0].new_zeros(self._length)
        present, targets = [], []
        for parameter, view in zip(self.parameters, self._views(flat), strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                present.append(parameter.grad)
                targets.append(view)
                parameter.grad = None
        if targets:
            torch._foreach_copy_(targets, present)
        node = Node(shard, shard + 1)
        while node in self._siblings and self._siblings[node][0] in self.sums:
            left, parent = self._siblings[node]
            total = self.sums.pop(left)
            total.add_(flat)
            self._free.append(flat)
            node, flat = parent, total
        self.sums[node] = flat

    def wait(self, root: Node) -> None:
        """Take the sum over all shards as the parameters' gradients."""
        assert self.sent is not None, "finish() before the last shard's end_shard()"
        total = self.sent.wait()
        self.sent = None
        for parameter, view in zip(self.parameters, self._views(total), strict=True):
            parameter.grad = view
        self._free.extend(self.sums.values())
        self.sums.clear()

    def _views(self, flat: Tensor) -> list[Tensor]:
        """A view per parameter with the parameter's own strides, as the optimizer likes it."""
        views, offset = [], 0
        for parameter in self.parameters:
            views.append(flat.as_strided(parameter.size(), parameter.stride(), offset))
            offset += parameter.numel()
        return views


class _Sent:
    """A sum under way."""

    def __init__(self, total: Tensor, work: dist.Work | Future[None] | None) -> None:
        self._total = total
        self._work = work

    def wait(self) -> Tensor:
        """The sum over all shards."""
        if isinstance(self._work, Future):
            self._work.result()
        elif self._work is not None:
            self._work.wait()
        return self._total


class _Alone:
    """One rank has the whole tree: nothing to exchange."""

    def start(self, sums: dict[Node, Tensor]) -> _Sent:
        (total,) = sums.values()
        return _Sent(total, None)

    def close(self) -> None:
        pass


class _Pair(_Alone):
    """Two ranks with one half of the tree each: the plain all-reduce adds a + b."""

    def start(self, sums: dict[Node, Tensor]) -> _Sent:
        (total,) = sums.values()
        return _Sent(total, dist.all_reduce(total, async_op=True))


class _Tree:
    """Any number of ranks: exchange slices, add them in the tree's order, gather the sums."""

    def __init__(self, num_shards: int, group: Group) -> None:
        self._root = Node(0, num_shards)
        self._world_size = group.world_size
        self._covers = [
            tree_cover(num_shards, shards_of_rank(num_shards, group.world_size, rank))
            for rank in range(group.world_size)
        ]
        self._mine = self._covers[group.rank]
        # A group and a thread of its own: its blocking steps overlap with backward and never
        # meet the main thread's collectives. CUDA's are ordered by the stream instead.
        self._group = dist.new_group()
        self._received: dict[torch.dtype, Tensor] = {}
        self._thread = ThreadPoolExecutor(1, "reducer") if group.device.type == "cpu" else None

    def start(self, sums: dict[Node, Tensor]) -> _Sent:
        partial = [sums[node] for node in self._mine]
        if self._thread is None:
            self._sum(partial)
            return _Sent(partial[0], None)
        return _Sent(partial[0], self._thread.submit(self._sum, partial))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def _sum(self, partial: list[Tensor]) -> None:
        """Leave the sum over all ranks in the first of this rank's partial sums."""
        length = partial[0].numel() // self._world_size
        sent = partial[0]
        if len(partial) > 1:
            sent = torch.stack([p.view(self._world_size, length) for p in partial], dim=1)
        counts = [len(cover) * length for cover in self._covers]
        received = self._memory(partial[0], sum(counts))
        dist.all_to_all_single(
            received,
            sent.view(-1),
            counts,
            [len(partial) * length] * self._world_size,
            group=self._group,
        )
        nodes = [node for cover in self._covers for node in cover]
        slices = dict(zip(nodes, received.split(length), strict=True))
        mine = tree_sum(self._root, slices, lambda left, right: left.add_(right))
        dist.all_gather_into_tensor(partial[0], mine, group=self._group)

    def _memory(self, like: Tensor, length: int) -> Tensor:
        """What is received, in memory that is used again: one bucket is summed at a time."""
        found = self._received.get(like.dtype)
        if found is None or len(found) < length:
            found = self._received[like.dtype] = like.new_empty(length)
        return found[:length]


def _exchange_for(num_shards: int, group: Group) -> _Alone | _Tree:
    if group.world_size == 1:
        return _Alone()
    covers = [tree_cover(num_shards, shards_of_rank(num_shards, 2, rank)) for rank in range(2)]
    if group.world_size == 2 and all(len(cover) == 1 for cover in covers):
        return _Pair()
    return _Tree(num_shards, group)


def _make_buckets(parameters: list[nn.Parameter], num_shards: int, group: Group) -> list[_Bucket]:
    """Buckets in the order in which backward reaches them: the last parameters first."""
    made: list[_Bucket] = []
    current: list[nn.Parameter] = []
    size_bytes = 0
    for parameter in reversed(parameters):
        if current and (size_bytes > BUCKET_BYTES or parameter.dtype != current[0].dtype):
            made.append(_Bucket(current, num_shards, group.world_size))
            current, size_bytes = [], 0
        current.append(parameter)
        size_bytes += parameter.numel() * parameter.element_size()
    if current:
        made.append(_Bucket(current, num_shards, group.world_size))
    return made
