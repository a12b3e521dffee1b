from __future__ import annotations

import math
import operator
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.samples.sharding import (
    Node,
    shards_of_rank,
    siblings,
    split_evenly,
    tree_cover,
    tree_sum,
)

SHARDS = st.integers(1, 40)


@st.composite
def sharings(draw: st.DrawFn) -> tuple[int, int]:
    """Shards, and ranks that can share them."""
    num_shards = draw(SHARDS)
    return num_shards, draw(st.integers(1, num_shards))


def nodes_of(num_shards: int) -> set[Node]:
    found, waiting = set(), [Node(0, num_shards)]
    while waiting:
        node = waiting.pop()
        found.add(node)
        waiting.extend(() if node.is_leaf else node.children())
    return found


def expected_sum(node: Node, gradients: list[float]) -> float:
    if node.is_leaf:
        return gradients[node.start]
    left, right = node.children()
    return expected_sum(left, gradients) + expected_sum(right, gradients)


@given(start=st.integers(0, 1000), length=st.integers(0, 1000), parts=st.integers(1, 60))
def test_the_parts_follow_each_other_and_differ_by_one_at_most(
    start: int, length: int, parts: int
) -> None:
    whole = range(start, start + length)
    cut = split_evenly(whole, parts)
    lengths = [len(part) for part in cut]
    assert [index for part in cut for index in part] == list(whole)
    assert len(cut) == parts
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@given(sharings())
def test_the_ranks_share_the_shards_and_rank_zero_has_the_first(sharing: tuple[int, int]) -> None:
    num_shards, world_size = sharing
    shares = [shards_of_rank(num_shards, world_size, rank) for rank in range(world_size)]
    assert [shard for share in shares for shard in share] == list(range(num_shards))
    assert all(shares)
    assert 0 in shares[0]


def test_more_ranks_than_shards_are_refused() -> None:
    with pytest.raises(ValueError, match="3 ranks cannot share 2 shards"):
        shards_of_rank(2, 3, 0)


@given(SHARDS)
def test_the_tree_is_as_deep_as_a_balanced_one(num_shards: int) -> None:
    def depth(node: Node) -> int:
        return 0 if node.is_leaf else 1 + max(depth(child) for child in node.children())

    assert depth(Node(0, num_shards)) == math.ceil(math.log2(num_shards))


@given(SHARDS, st.data())
def test_a_cover_is_exact_and_takes_the_largest_nodes_of_the_tree(
    num_shards: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num_shards))
    shards = range(start, data.draw(st.integers(start, num_shards)))
    cover = tree_cover(num_shards, shards)
    assert [shard for node in cover for shard in range(node.start, node.stop)] == list(shards)
    nodes = nodes_of(num_shards)
    assert nodes.issuperset(cover)
    inside = {n for n in nodes if shards.start <= n.start and n.stop <= shards.stop}
    parents = {child: n for n in nodes if not n.is_leaf for child in n.children()}
    assert all(parents.get(node) not in inside for node in cover)


@given(SHARDS)
def test_every_right_child_knows_its_sibling_and_parent(num_shards: int) -> None:
    found = siblings(num_shards)
    inner = [node for node in nodes_of(num_shards) if not node.is_leaf]
    assert len(found) == len(inner)
    for right, (left, parent) in found.items():
        assert parent.children() == (left, right)


@pytest.mark.promise("exact-training")
@given(sharings(), st.integers(0, 2**32))
def test_any_number_of_ranks_sums_to_the_bits_of_one(sharing: tuple[int, int], seed: int) -> None:
    num_shards, world_size = sharing
    generator = random.Random(seed)
    gradients = [generator.gauss(0, 1) * 10 ** generator.randint(-8, 8) for _ in range(num_shards)]
    sent: dict[Node, float] = {}
    for rank in range(world_size):
        share = shards_of_rank(num_shards, world_size, rank)
        own = {Node(shard, shard + 1): gradients[shard] for shard in share}
        for node in tree_cover(num_shards, share):
            sent[node] = tree_sum(node, own, operator.add)
    root = Node(0, num_shards)
    assert tree_sum(root, sent, operator.add).hex() == expected_sum(root, gradients).hex()
