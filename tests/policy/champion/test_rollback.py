from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.champion.rollback import Reign, champion_before


def history(text: str) -> list[Reign]:
    """Of `1 2 <1`: version 1, then 2, then back to 1."""
    return [Reign(int(word.removeprefix("<")), word.startswith("<")) for word in text.split()]


@pytest.mark.promise("rollback")
@pytest.mark.parametrize(
    ("champions", "before"),
    [
        ("", None),
        ("1", None),
        ("1 2", 1),
        ("1 2 3", 2),
        # What was rolled back is not gone back to.
        ("1 2 <1", None),
        ("1 2 3 <2", 1),
        ("1 2 3 <2 <1", None),
        ("1 2 3 <1", None),
        ("1 2 <1 3", 1),
        ("1 2 <1 3 <1", None),
        # Somebody goes back to one that was never champion.
        ("3 <1", 3),
        ("3 <1 <3", None),
        # A version that was champion before is promoted once more.
        ("1 2 1", 2),
        ("1 2 1 <2", 1),
    ],
)
def test_a_rollback_goes_to_the_champion_before(champions: str, before: int | None) -> None:
    assert champion_before(history(champions)) == before


@given(st.lists(st.integers(1, 5), max_size=12))
def test_rollbacks_one_after_the_other_come_to_an_end_and_never_forward(
    promoted: list[int],
) -> None:
    made = [Reign(version, is_rollback=False) for version in promoted]
    seen = []
    while (before := champion_before(made)) is not None:
        assert before != made[-1].version
        made.append(Reign(before, is_rollback=True))
        seen.append(before)
        assert len(seen) <= len(promoted)
    if seen:
        assert seen[-1] == promoted[0]
