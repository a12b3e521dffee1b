"""Which samples a shard sees, which shards a rank computes, and in what order they are summed.

A step's samples are cut into micro-steps and those into `num_shards` shards. The cut, and the
binary tree in which the shards' gradients are summed, depend on `num_shards` alone and never
on the number of ranks: that is why 1, 2, 3 or 4 workers end with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def split_evenly(whole: range, parts: int) -> list[range]:
    """Cut `whole` into `parts` consecutive ranges whose lengths differ by at most one.

    The first ranges are the longer ones; ranges may be empty when `parts > len(whole)`.
    """
    base, extra = divmod(len(whole), parts)
    bounds = [whole.start]
    for part in range(parts):
        bounds.append(bounds[-1] + base + (part < extra))
    return [range(lo, hi) for lo, hi in pairwise(bounds)]


def shards_of_rank(num_shards: int, world_size: int, rank: int) -> range:
    """The consecutive shards that `rank` computes. Rank 0 always has shard 0."""
    if world_size > num_shards:
        raise ValueError(f"{world_size} ranks cannot share {num_shards} shards")
    return split_evenly(range(num_shards), world_size)[rank]


def rows_of_rank(num_rows: int, world_size: int, rank: int) -> range:
    """The rows of a tensor that `rank` has when FSDP2 cuts it, as `torch.chunk` would."""
    each = -(-num_rows // world_size)
    return range(min(rank * each, num_rows), min((rank + 1) * each, num_rows))


@dataclass(frozen=True, order=True)
class Node:
    """A node of the summation tree: the sum over shards `start` to `stop - 1`."""

    start: int
    stop: int

    @property
    def is_leaf(self) -> bool:
        """Whether the node is one shard."""
        return self.stop - self.start == 1

    def children(self) -> tuple[Node, Node]:
        """The two halves; the left one is the largest power of two below the whole."""
        middle = self.start + (1 << (self.stop - self.start - 1).bit_length() - 1)
        return Node(self.start, middle), Node(middle, self.stop)


def tree_cover(num_shards: int, shards: range) -> list[Node]:
    """The largest nodes of the tree over `num_shards` that lie within `shards`, left to right.

    Their sums are all that a rank has to send, and all that it can add up by itself without
    leaving the tree's order.
    """

    def visit(node: Node) -> Iterable[Node]:
        if shards.start <= node.start and node.stop <= shards.stop:
            yield node
        elif node.start < shards.stop and shards.start < node.stop:
            for child in node.children():
                yield from visit(child)

    return list(visit(Node(0, num_shards))) if shards else []


def siblings(num_shards: int) -> dict[Node, tuple[Node, Node]]:
    """For each right child of the tree: its left sibling and their parent."""
    found: dict[Node, tuple[Node, Node]] = {}

    def visit(node: Node) -> None:
        if not node.is_leaf:
            left, right = node.children()
            found[right] = (left, node)
            visit(left)
            visit(right)

    visit(Node(0, num_shards))
    return found


def tree_sum(node: Node, sums: dict[Node, T], add: Callable[[T, T], T]) -> T:
    """The value of `node`, from the sums of nodes below it, added in the tree's order."""
    if node in sums:
        return sums[node]
    left, right = node.children()
    return add(tree_sum(left, sums, add), tree_sum(right, sums, add))
