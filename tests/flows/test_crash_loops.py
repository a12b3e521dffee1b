"""When a flow run that dies again and again is given up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest
from prefect import State
from prefect.states import AwaitingRetry, Cancelled, Crashed, Failed, Pending, Running

from flows.crash_loops import MAX_CRASHES, is_in_vain

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(minute: float) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def run(end: State | None, begin: float) -> list[State]:
    """A run of a flow run and how it ends, a minute later; None: it goes on."""
    begun = [Pending(timestamp=at(begin)), Running(timestamp=at(begin + 0.1))]
    return begun if end is None else [*begun, end.model_copy(update={"timestamp": at(begin + 1)})]


def history(*ends: State) -> list[State]:
    """What a flow run has behind it that runs now: its runs begin every ten minutes."""
    runs = (run(end, 10 * number) for number, end in enumerate([*ends, None]))
    return list(chain.from_iterable(runs))


DEATHS = [Crashed()] * MAX_CRASHES


@pytest.mark.promise("crash-loop")
@pytest.mark.parametrize(
    ("ends", "newest", "expected"),
    [
        (DEATHS, None, True),
        (DEATHS[1:], None, False),
        # A checkpoint of before them all, of the first of them, and of the last.
        (DEATHS, -1, True),
        (DEATHS, 0.5, False),
        (DEATHS, 45, False),
        ([Crashed(), *DEATHS], 0.5, True),
        ([Crashed(), *DEATHS], 10.5, False),
        # What failed or was cancelled was seen by somebody.
        ([*DEATHS, Failed()], None, False),
        ([*DEATHS[1:], Cancelled(), Crashed()], None, False),
        ([Failed(), *DEATHS], None, True),
    ],
)
def test_a_flow_run_is_in_vain_if_its_last_runs_died_and_left_no_checkpoint(
    ends: list[State], newest: float | None, *, expected: bool
) -> None:
    made = None if newest is None else at(newest)
    assert is_in_vain(history(*ends), made) is expected
    assert is_in_vain(reversed(history(*ends)), made) is expected


def test_a_death_that_is_told_twice_is_one() -> None:
    states = history(*DEATHS[1:])
    for number in range(MAX_CRASHES - 1):
        states += [
            Crashed(timestamp=at(10 * number + 2)),
            AwaitingRetry(timestamp=at(10 * number + 3)),
        ]
    assert not is_in_vain(states, None)
