from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.retention import checkpoints_to_delete
from train_core.policy.selection import Candidate, Order, ranked


def deleted(
    values: list[float | None],
    keep_last: int,
    keep_best: int,
    order: Order = "max",
    protected: str = "",
) -> str:
    """The names that may go, of candidates that are named after their steps."""
    asked = [Candidate(f"{step}", step, {"accuracy": value}) for step, value in enumerate(values)]
    found = checkpoints_to_delete(
        asked[::-1],
        keep_last=keep_last,
        keep_best=keep_best,
        metric="accuracy",
        order=order,
        protected=set(protected),
    )
    return "".join(candidate.name for candidate in found)


@pytest.mark.parametrize(
    ("values", "keep_last", "keep_best", "expected"),
    [
        ([], 1, 1, ""),
        ([0.1], 1, 1, ""),
        ([0.1, 0.2, 0.3, 0.4], 1, 1, "012"),
        ([0.4, 0.3, 0.2, 0.1], 1, 1, "12"),
        ([0.4, 0.3, 0.2, 0.1], 2, 1, "1"),
        ([0.4, 0.3, 0.2, 0.1], 1, 2, "2"),
        ([0.5, 0.5, 0.1, 0.1], 1, 1, "02"),  # of two equal ones the later is the best
        ([None, math.nan, 0.1, 0.2], 1, 3, "01"),  # what was not measured is not among the best
        ([None, None, None], 1, 3, "01"),
        ([0.1, 0.2], 9, 9, ""),
    ],
)
def test_the_newest_and_the_best_stay(
    values: list[float | None], keep_last: int, keep_best: int, expected: str
) -> None:
    assert deleted(values, keep_last, keep_best) == expected


def test_with_order_min_the_lowest_stay() -> None:
    assert deleted([0.4, 0.1, 0.3, 0.2], 1, 1, order="min") == "02"


def test_what_is_protected_stays() -> None:
    assert deleted([0.1, 0.2, 0.3, 0.4], 1, 1, protected="1") == "02"


@given(
    st.lists(st.none() | st.floats(), max_size=20),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sets(st.integers(0, 19)),
)
def test_nothing_that_a_rule_keeps_is_deleted(
    values: list[float | None], keep_last: int, keep_best: int, protected: set[int]
) -> None:
    asked = [Candidate(f"{step}", step, {"loss": value}) for step, value in enumerate(values)]
    names = {f"{step}" for step in protected}
    gone = checkpoints_to_delete(
        asked,
        keep_last=keep_last,
        keep_best=keep_best,
        metric="loss",
        order="min",
        protected=names,
    )
    kept = [candidate for candidate in asked if candidate not in gone]
    assert kept[-keep_last:] == asked[-keep_last:]
    assert all(best in kept for best in ranked(asked, "loss", "min")[:1])
    assert {candidate.name for candidate in gone}.isdisjoint(names)
    assert len(kept) <= keep_last + keep_best + len(names)
