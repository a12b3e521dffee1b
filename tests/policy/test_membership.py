from __future__ import annotations

from dataclasses import replace

import pytest

from train_core.policy.membership import (
    MembershipRules,
    has_room_for_more,
    keeps_workers,
    reason_to_move,
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
