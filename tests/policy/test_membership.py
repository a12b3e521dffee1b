from __future__ import annotations

from dataclasses import replace

import pytest

from train_core.policy.membership import (
    MembershipRules,
    has_room_for_more,
    keeps_workers,
    reason_to_move,
    why_no_spare,
    workers_to_begin,
)

RULES = MembershipRules(fewest=2, most=4, settle_s=5, grow_after_s=10)


@pytest.mark.parametrize(
    ("room", "waited_s", "expected"),
    [
        # All that are wanted begin at once, and no more than those.
        (4, 0, 4),
        (9, 0, 4),
        # Fewer wait for resources that are on their way back.
        (3, 5, None),
        (3, 5.1, 3),
        (2, 5.1, 2),
        (1, 9999, None),
        (0, 9999, None),
    ],
)
def test_so_many_begin(room: int, waited_s: float, expected: int | None) -> None:
    assert workers_to_begin(room, waited_s, RULES) == expected


@pytest.mark.parametrize(
    ("is_placed", "drained", "expected"),
    [(True, set(), True), (False, set(), False), (True, {"n"}, False), (False, {"n"}, False)],
)
def test_workers_are_kept_where_all_are_placed_on_nodes_that_stay(
    is_placed: bool, drained: set[str], expected: bool
) -> None:
    assert keeps_workers(is_placed=is_placed, drained=drained) is expected


@pytest.mark.parametrize(
    ("workers", "room", "can_grow", "expected"),
    [
        (3, 1, True, True),
        (3, 0, True, False),
        (4, 1, True, False),
        (3, 1, False, False),
    ],
)
def test_more_can_join_where_there_is_room_and_more_are_wanted(
    workers: int, room: int, can_grow: bool, expected: bool
) -> None:
    assert has_room_for_more(workers, room, replace(RULES, can_grow=can_grow)) is expected


@pytest.mark.parametrize(
    ("drained", "room_for_s", "expected"),
    [
        (set(), 0, ""),
        (set(), 10, ""),
        (set(), 10.1, "there is room for more than 3 workers"),
        ({"b", "a"}, 0, "node a, b is being drained"),
        ({"a"}, 99, "node a is being drained"),
    ],
)
def test_a_node_that_goes_and_room_that_stays_are_reasons_to_move(
    drained: set[str], room_for_s: float, expected: str
) -> None:
    assert reason_to_move(3, drained, room_for_s, RULES) == expected


@pytest.mark.parametrize(
    ("left_s", "room_gib", "expected"),
    [
        (None, 2, ""),
        (60, 2, ""),
        (59.6, 2, "the training ends in 60 s"),
        (
            None,
            1.9,
            "it would leave 1.9 GiB of memory, less than 2; spares=1 starts one all the same",
        ),
        (
            None,
            -3,
            "it would leave 0.0 GiB of memory, less than 2; spares=1 starts one all the same",
        ),
    ],
)
def test_a_spare_is_worth_it_if_the_training_goes_on_and_memory_is_left(
    left_s: float | None, room_gib: float, expected: str
) -> None:
    assert why_no_spare(left_s, int(room_gib * 2**30), least_left_s=60) == expected
