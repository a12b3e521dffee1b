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

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from train_core.errors import WorkloadError
from train_core.policy.samples.sharding import Node, shards_of_rank, siblings, tree_cover, tree_sum
from train_core.rank.distributed.group import Group

# What is left to send when backward ends is at most one bucket, so a bucket is small.
BUCKET_BYTES = 4 * 2**20
_CACHE_LINE = 64
"""In numbers, of any type: of one byte at least."""


class Reducer:
    """Collects each shard's gradients and leaves their sum in every parameter's `grad`.

    Per step: for each of the rank's shards in order, `begin_shard`, its backward passes, with
    `expect_last_backward` before the last one, and `end_shard`; then `finish`. A parameter that no
    shard has reached has no gradient then, as in plain autograd: an optimizer leaves it alone.
    With `none_is_zero`, for runs that began so, it has one of zeros.
    """

    def __init__(
        self, model: nn.Module, num_shards: int, group: Group, *, none_is_zero: bool = False
    ) -> None:
        self._model = model
        self._num_shards = num_shards
        self._group = group
        self._none_is_zero = none_is_zero
        self._root = Node(0, num_shards)
        self._last_shard = shards_of_rank(num_shards, group.world_size, group.rank)[-1]
        self._exchange = _exchange_for(num_shards, group)
        self._shard = 0
        self._listening = False
        self._next = 0
        self._parameters: list[nn.Parameter] = []
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self._hooks: list[RemovableHandle] = []
        self._learns = True
        """Whether the step shows which parameters a backward pass reaches more than once."""
        self.follow()

    def follow(self) -> None:
        """Sum the gradients of the parameters that need one now; all ranks call it together."""
        for hook in self._hooks:
            hook.remove()
        self._parameters = list(self._model.parameters())
        named = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
        # A single shard's gradient is the sum: autograd's own tensors are used as they are.
        self._buckets = (
            []
            if self._num_shards == 1
            else _make_buckets(named, self._num_shards, self._group, self._none_is_zero)
        )
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        self._learns = True
        # No collector of garbage sees that the parameters refer to their hooks, and so would to the
        # process group.
        on_gradient = WeakMethod(self._on_gradient)

        def listen(parameter: Tensor) -> None:
            if (method := on_gradient()) is not None:
                method(parameter)

        # A rank alone sends nothing while backward goes on.
        self._hooks = [
            p.register_post_accumulate_grad_hook(listen)
            for bucket in self._buckets
            for p in bucket.parameters
            if self._group.world_size > 1
        ]

    def begin_shard(self, shard: int) -> None:
        """The backward passes that follow belong to `shard`."""
        self._shard = shard
        self._next = 0
        self._listening = False
        for parameter in self._parameters:
            parameter.grad = None

    def expect_last_backward(self) -> None:
        """The next backward pass is the shard's last: send each bucket when it is complete."""
        if self._shard != self._last_shard:
            return
        for bucket in self._buckets:
            bucket.missing = {id(p) for p in bucket.parameters}
        self._listening = True

    def end_shard(self) -> None:
        """The shard's backward passes are done; parameters that none reached have no gradient."""
        self._listening = False
        while self._next < len(self._buckets):
            self._close(self._buckets[self._next])

    def finish(self) -> None:
        """Wait for the sums and put them into the parameters' `grad`."""
        for bucket in self._buckets:
            bucket.wait()
        self._learns = False

    def close(self) -> None:
        """End the thread that exchanges."""
        self._exchange.close()

    def _on_gradient(self, parameter: Tensor) -> None:
        if not self._listening:
            return
        bucket = self._bucket_of[id(parameter)]
        if bucket.sent is not None:
            raise WorkloadError(
                f"a backward pass reached {bucket.name_of(parameter)!r} a second time after its "
                "gradient was sent: in the first step it had reached it once. Reentrant "
                "activation checkpointing of a block that is called a changing number of times "
                "does so: give `checkpoint` use_reentrant=False, or train with one worker"
            )
        if id(parameter) in bucket.missing:
            bucket.missing.remove(id(parameter))
        else:
            # Its gradient is whole when backward ends, and no sooner.
            bucket.is_reached_again = True
        # Always in the same order, on every rank: collectives have to match.
        while not self._learns and self._next < len(self._buckets):
            following = self._buckets[self._next]
            if following.missing or following.is_reached_again:
                return
            self._close(following)

    def _close(self, bucket: _Bucket) -> None:
        self._next += 1
        bucket.add_shard(self._shard)
        if self._shard == self._last_shard:
            bucket.sent = self._exchange.start(bucket.sums)


class _Bucket:
    """Parameters of one type whose gradients travel together, in one flat tensor.

    After the gradients it has a number for each parameter: of how many shards had a gradient.
    """

    def __init__(
        self,
        named: list[tuple[str, nn.Parameter]],
        num_shards: int,
        world_size: int,
        *,
        none_is_zero: bool,
    ) -> None:
        self.parameters = [parameter for _, parameter in named]
        self._names = [name for name, _ in named]
        self.missing: set[int] = set()
        """The parameters that the shard's last backward pass has not reached yet."""
        self.is_reached_again = False
        """Whether a backward pass reaches one of the parameters more than once."""
        self.sums: dict[Node, Tensor] = {}
        self.sent: _Sent | None = None
        self._none_is_zero = none_is_zero
        self._without: set[int] | None = None
        """The parameters without a gradient in all of the rank's shards of this step."""
        self._siblings = siblings(num_shards)
        self._free: list[Tensor] = []
        self._shapes = [p.size() for p in self.parameters]
        self._strides = [_strides_of_gradient(p) for p in self.parameters]
        # An optimizer may multiply matrices, and BLAS rounds by where a matrix begins: each begins
        # as a tensor of its own does.
        step = max(1, _CACHE_LINE // self.parameters[0].element_size())
        sizes = [-(-p.numel() // step) * step for p in self.parameters]
        *self._offsets, self._size = accumulate(sizes, initial=0)
        # Every rank adds one slice, which begins at a cache line.
        multiple = world_size * _CACHE_LINE
        self._length = -(-(self._size + len(named)) // multiple) * multiple

    def name_of(self, parameter: Tensor) -> str:
        """The parameter's name in the model."""
        return next(
            name for name, own in zip(self._names, self.parameters, strict=True) if own is parameter
        )

    def add_shard(self, shard: int) -> None:
        """Move the parameters' gradients into the tree, adding up what is complete."""
        flat = self._memory()
        present, targets = [], []
        without = set()
        for number, (parameter, view) in enumerate(
            zip(self.parameters, self._views(flat), strict=True)
        ):
            gradient = parameter.grad
            if gradient is None:
                without.add(number)
                view.fill_(_nothing(view.dtype))
                continue
            if gradient.layout != torch.strided:
                raise WorkloadError(sparse_gradient(self._names[number]))
            present.append(gradient)
            targets.append(view)
            parameter.grad = None
        if targets:
            torch._foreach_copy_(targets, present)
        counts = flat[self._size :].fill_(1)
        for number in without:
            counts[number] = 0
        self._without = without if self._without is None else self._without & without
        node = Node(shard, shard + 1)
        while node in self._siblings and self._siblings[node][0] in self.sums:
            left, parent = self._siblings[node]
            total = self.sums.pop(left)
            total.add_(flat)
            self._free.append(flat)
            node, flat = parent, total
        self.sums[node] = flat

    def wait(self) -> None:
        """Take the sum over all shards as the parameters' gradients."""
        assert self.sent is not None, "finish() before the last shard's end_shard()"
        total = self.sent.wait()
        self.sent = None
        for parameter, view in zip(self.parameters, self._views(total), strict=True):
            parameter.grad = view
        if self._without:
            # Only now: reading the numbers makes a GPU wait.
            counts = total[self._size :].tolist()
            for number in self._without:
                if counts[number] == 0:
                    self._leave_out(self.parameters[number])
        self._without = None
        self._free.extend(self.sums.values())
        self.sums.clear()

    def _leave_out(self, parameter: nn.Parameter) -> None:
        """No shard has a gradient of the parameter."""
        if self._none_is_zero and parameter.grad is not None:
            parameter.grad.zero_()
        else:
            parameter.grad = None

    def _memory(self) -> Tensor:
        """Memory for a shard's gradients: that of an earlier step, if nobody else has kept it."""
        while self._free:
            flat = self._free.pop()
            # An optimizer or a hook may have kept a parameter's `grad` itself.
            if _uses(flat) == _USES_OF_ONE:
                return flat
        return self.parameters[0].new_zeros(self._length)

    def _views(self, flat: Tensor) -> list[Tensor]:
        """A view per parameter with the strides that autograd gives a gradient."""
        return [
            flat.as_strided(shape, strides, offset)
            for shape, strides, offset in zip(
                self._shapes, self._strides, self._offsets, strict=True
            )
        ]


def sparse_gradient(name: str) -> str:
    """Why a parameter with a sparse gradient is refused."""
    return (
        f"the gradient of {name!r} is sparse, and gradients of several shards are summed dense: "
        "make its layer without sparse=True, or train on one shard (num_shards 1)"
    )


def _strides_of_gradient(parameter: Tensor) -> tuple[int, ...]:
    """Those of the parameter where its values lie side by side, else those of whole rows."""
    # Of a tensor with gaps or overlaps, torch makes one that is dense.
    like = torch.empty_like(parameter, device="meta", memory_format=torch.preserve_format)
    if like.stride() == parameter.stride():
        return parameter.stride()
    return torch.empty(parameter.size(), device="meta").stride()


def _nothing(dtype: torch.dtype) -> complex:
    """What added to a number leaves it as it is, also to a zero of either sign."""
    return complex(-0.0, -0.0) if dtype.is_complex else -0.0


def _uses(tensor: Tensor) -> int:
    """How many tensors, this one and views of it, share its memory."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))  # noqa: SLF001 (nothing public counts them)


_USES_OF_ONE = _uses(torch.empty(1))


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


def _make_buckets(
    named: list[tuple[str, nn.Parameter]], num_shards: int, group: Group, none_is_zero: bool
) -> list[_Bucket]:
    """Buckets in the order in which backward reaches them: the last parameters first."""
    grouped: list[list[tuple[str, nn.Parameter]]] = []
    size_bytes = 0
    for name, parameter in reversed(named):
        if not grouped or size_bytes > BUCKET_BYTES or parameter.dtype != grouped[-1][0][1].dtype:
            grouped.append([])
            size_bytes = 0
        grouped[-1].append((name, parameter))
        size_bytes += parameter.numel() * parameter.element_size()
    return [
        _Bucket(some, num_shards, group.world_size, none_is_zero=none_is_zero) for some in grouped
    ]
