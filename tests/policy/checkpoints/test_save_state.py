from __future__ import annotations

from collections.abc import Callable

import pytest

from train_core.policy.checkpoints.save_state import NEXT_STATES, SaveState, SaveStatus

SAVED, IN_FLIGHT, FAILED, CLEARED = SaveState
OF_STATE = {
    SAVED: SaveStatus(),
    IN_FLIGHT: SaveStatus().began(3, 10.0),
    FAILED: SaveStatus().began(3, 10.0).failed(12.0),
    CLEARED: SaveStatus().began(3, 10.0).failed(12.0).cleared(),
}
EVENTS: dict[SaveState, Callable[[SaveStatus], SaveStatus]] = {
    IN_FLIGHT: lambda status: status.began(4, 20.0),
    SAVED: lambda status: status.stored(),
    FAILED: lambda status: status.failed(20.0),
    CLEARED: lambda status: status.cleared(),
}


@pytest.mark.parametrize("before", SaveState)
@pytest.mark.parametrize("after", SaveState)
def test_a_state_leads_to_those_of_the_table_and_to_no_other(
    before: SaveState, after: SaveState
) -> None:
    if after in NEXT_STATES[before]:
        assert EVENTS[after](OF_STATE[before]).state is after
    else:
        with pytest.raises(AssertionError):
            EVENTS[after](OF_STATE[before])


def test_the_time_without_a_commit_counts_from_the_first_that_failed() -> None:
    first = SaveStatus().began(1, 5.0).stored()
    failed = first.began(2, 10.0).failed(12.0).began(3, 14.0).failed(16.0)
    assert (failed.step, failed.unsaved_since, failed.failed_at) == (3, 10.0, 16.0)
    again = failed.began(4, 18.0)
    assert again.unsaved_since == 10.0
    assert again.stored().failed_at is None
    assert again.stored().began(5, 30.0).unsaved_since == 30.0


@pytest.mark.parametrize(
    ("state", "now", "limit_s", "expected"),
    [
        (SAVED, 1e9, 5, False),
        (IN_FLIGHT, 15.0, 5, False),
        (IN_FLIGHT, 15.1, 5, True),
        (FAILED, 15.1, 5, True),
        (CLEARED, 15.1, 5, True),
        (FAILED, 1e9, 0, False),
    ],
)
def test_nothing_may_be_unsaved_for_longer_than_the_limit(
    state: SaveState, now: float, limit_s: float, expected: bool
) -> None:
    assert OF_STATE[state].is_unsaved_too_long(now, limit_s) is expected


@pytest.mark.parametrize(
    ("state", "now", "expected"),
    [
        (SAVED, 99.0, False),
        (IN_FLIGHT, 99.0, False),
        (FAILED, 16.9, False),
        (FAILED, 17.0, True),
        (CLEARED, 99.0, False),
    ],
)
def test_one_that_failed_is_tried_again_after_a_while(
    state: SaveState, now: float, expected: bool
) -> None:
    assert OF_STATE[state].is_retry_due(now, 5.0) is expected


def test_a_retry_that_is_in_flight_is_not_due_once_more() -> None:
    again = OF_STATE[FAILED].began(4, 20.0)
    assert not again.is_retry_due(99.0, 5.0)
