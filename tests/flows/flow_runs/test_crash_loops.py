"""When a flow run that crashes again and again is given up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest
from prefect import State
from prefect.states import AwaitingRetry, Cancelled, Crashed, Failed, Pending, Running

from evertrain_flows.flow_runs.crash_loops import MAX_CRASHES, is_crash_loop

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


CRASHES = [Crashed()] * MAX_CRASHES


@pytest.mark.promise("crash-loop")
@pytest.mark.parametrize(
    ("ends", "newest", "expected"),
    [
        (CRASHES, None, True),
        (CRASHES[1:], None, False),
        # A checkpoint of before them all, of the first of them, and of the last.
        (CRASHES, -1, True),
        (CRASHES, 0.5, False),
        (CRASHES, 45, False),
        ([Crashed(), *CRASHES], 0.5, True),
        ([Crashed(), *CRASHES], 10.5, False),
        # What failed or was cancelled was seen by somebody.
        ([*CRASHES, Failed()], None, False),
        ([*CRASHES[1:], Cancelled(), Crashed()], None, False),
        ([Failed(), *CRASHES], None, True),
    ],
)
def test_a_flow_run_is_a_crash_loop_if_its_last_runs_crashed_and_left_no_checkpoint(
    ends: list[State], newest: float | None, *, expected: bool
) -> None:
    made = None if newest is None else at(newest)
    assert is_crash_loop(history(*ends), made) is expected
    assert is_crash_loop(reversed(history(*ends)), made) is expected


def test_a_crash_that_is_reported_twice_is_one() -> None:
    states = history(*CRASHES[1:])
    for number in range(MAX_CRASHES - 1):
        states += [
            Crashed(timestamp=at(10 * number + 2)),
            AwaitingRetry(timestamp=at(10 * number + 3)),
        ]
    assert not is_crash_loop(states, None)
