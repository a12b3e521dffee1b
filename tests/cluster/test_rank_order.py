"""Which worker becomes which rank: the order of ranks, and what each is told of its place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from train_core.cluster.rank_order import Location, Rank, assign_ranks

WORKERS = st.lists(
    st.builds(
        Location,
        st.sampled_from(["one", "other", "third"]),
        st.lists(st.integers(0, 11).map(str), max_size=2, unique=True).map(tuple),
    ),
    min_size=1,
    max_size=9,
)


def ranks_of(*locations: Location) -> list[Rank]:
    return [rank for _, rank in assign_ranks(locations)]


def test_ranks_of_a_node_are_neighbours_in_the_order_of_their_gpus() -> None:
    found = assign_ranks(
        [
            Location("b", ("10",)),
            Location("a", ("0",)),
            Location("b", ("2",)),
            Location("a", ("1",)),
        ]
    )
    assert [index for index, _ in found] == [2, 0, 1, 3]
    assert [(r.node_rank, r.local_rank, r.local_world_size) for _, r in found] == [
        (0, 0, 2),
        (0, 1, 2),
        (1, 0, 2),
        (1, 1, 2),
    ]


def test_a_rank_sees_all_gpus_of_its_ranks_on_the_node_and_knows_its_own() -> None:
    second = ranks_of(Location("a", ("2",)), Location("a", ("10",)))[1]
    assert second.environment() == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "ACCELERATE_TORCH_DEVICE": "cuda:1",
        "CUDA_VISIBLE_DEVICES": "2,10",
    }


def test_ranks_that_share_a_gpu_have_the_same_device() -> None:
    found = ranks_of(Location("a", ("3",)), Location("a", ("3",)), Location("a", ("5",)))
    assert [(rank.gpus, rank.device) for rank in found] == [
        (("3", "5"), 0),
        (("3", "5"), 0),
        (("3", "5"), 1),
    ]


def test_without_gpus_nothing_is_said_of_cuda() -> None:
    (alone,) = ranks_of(Location("a"))
    assert "CUDA_VISIBLE_DEVICES" not in alone.environment()
    assert alone.environment()["ACCELERATE_TORCH_DEVICE"] == "cpu"


@given(WORKERS)
def test_every_worker_is_one_rank_and_finds_its_gpu(locations: list[Location]) -> None:
    found = assign_ranks(locations)
    assert sorted(index for index, _ in found) == list(range(len(locations)))
    assert [rank.rank for _, rank in found] == list(range(len(locations)))
    for index, rank in found:
        own = locations[index]
        peers = [other for _, other in found if other.node == own.node]
        assert rank.world_size == len(locations)
        assert rank.local_world_size == len(peers)
        assert [peer.local_rank for peer in peers] == list(range(len(peers)))
        assert {peer.node_rank for peer in peers} == {rank.node_rank}
        if own.gpus:
            assert rank.gpus[rank.device] == own.gpus[0]
            assert set(own.gpus) <= set(rank.gpus)
