"""What is tried again, how often, and what is said in the end."""

from __future__ import annotations

import logging
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from train_core.errors import StorageError
from train_core.storage.objects.retry_policy import (
    DEFAULT,
    SHORT,
    RetryPolicy,
    UnfinishedError,
    may_pass,
    retried,
)

PAUSES = """
import random
from tests.storage.objects.test_retry_policy import RetryPolicy, failing, retried
before = random.getstate()
retried(failing(1, ConnectionResetError("gone"))[0], "cannot do it", RetryPolicy(budget_s=10))
assert random.getstate() == before
"""


def failing(times: int, error: Exception) -> tuple[Callable[[float], str], list[float]]:
    """An operation that fails so often, and the seconds that it was given each time."""
    given: list[float] = []

    def operation(left_s: float) -> str:
        given.append(left_s)
        if len(given) <= times:
            raise error
        return "done"

    return operation, given


@pytest.mark.promise("retries")
def test_an_operation_that_fails_twice_is_done_at_the_third_attempt() -> None:
    operation, given = failing(2, ConnectionResetError("gone"))
    assert retried(operation, "cannot do it", RetryPolicy(budget_s=10)) == "done"
    # Half to all of 0.5 s, then of 1 s.
    assert 10 >= given[0] >= given[1] + 0.25 >= given[2] + 0.75


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each pause that is made, as it is made."""
    made: list[float] = []
    sleep = time.sleep

    def note(pause_s: float) -> None:
        made.append(pause_s)
        sleep(pause_s)

    monkeypatch.setattr(time, "sleep", note)
    return made


@pytest.fixture
def _as_it_was() -> Iterator[None]:
    """The common generator, after the test."""
    before = random.getstate()
    yield
    random.setstate(before)


@pytest.mark.usefixtures("_as_it_was")
def test_of_many_that_a_server_refused_at_once_few_come_back_together(pauses: list[float]) -> None:
    def ask(_: int) -> None:
        # As a training does before each forward.
        random.seed(1)
        retried(
            failing(1, ConnectionResetError("gone"))[0], "cannot do it", RetryPolicy(budget_s=10)
        )

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(ask, range(20)))
    assert len(pauses) == len(set(pauses)) == 20
    assert min(pauses) >= 0.25
    assert max(pauses) <= 0.5
    # The chance that all of twenty fall into two fifths of the time is 2 in ten million.
    assert max(pauses) - min(pauses) > 0.1


def test_a_pause_draws_nothing_from_the_numbers_that_a_training_was_seeded_with() -> None:
    # In a process of its own: threads that libraries keep draw from those numbers, too.
    subprocess.run([sys.executable, "-c", PAUSES], check=True)


@pytest.mark.promise("retries")
def test_what_does_not_pass_by_itself_is_raised_at_once() -> None:
    operation, given = failing(9, PermissionError("no"))
    with pytest.raises(PermissionError, match=r"^no$"):
        retried(operation, "cannot do it", RetryPolicy(budget_s=10))
    assert len(given) == 1


@pytest.mark.promise("retries")
def test_when_the_budget_is_spent_the_cause_and_the_time_are_named() -> None:
    operation, given = failing(99, ConnectionResetError("gone"))
    begin = time.monotonic()
    with pytest.raises(
        StorageError,
        match=r"^cannot do it: ConnectionResetError: gone "
        r"\(given up after \d s, in attempt (\d)\)$",
    ) as raised:
        retried(operation, "cannot do it", RetryPolicy(budget_s=1.0))
    assert time.monotonic() - begin < 1.5
    assert 2 <= len(given) <= 3  # after 0.25 to 0.5 s, and 0.5 to 1 s after that
    assert f"attempt {len(given)}" in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)


def test_a_deadline_in_the_end_does_not_hide_what_failed_before() -> None:
    errors = iter([ConnectionResetError("gone"), TimeoutError(), TimeoutError(), TimeoutError()])

    def operation(left_s: float) -> None:
        raise next(errors)

    with pytest.raises(StorageError, match="ConnectionResetError: gone"):
        retried(operation, "cannot do it", RetryPolicy(budget_s=1.0))


@pytest.mark.parametrize(
    ("retry_policy", "warnings"), [(DEFAULT, 1), (SHORT, 0)], ids=["patient", "hasty"]
)
def test_a_short_retry_policy_fills_no_log(
    retry_policy: RetryPolicy, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    operation, _ = failing(2, ConnectionResetError("gone"))
    assert retried(operation, "cannot do it", retry_policy) == "done"
    assert sum(one.levelno >= logging.WARNING for one in caplog.records) == warnings


def test_a_transfer_has_a_second_more_for_each_mebibyte() -> None:
    assert RetryPolicy(budget_s=5).for_bytes(3 * 2**20) == 8


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (UnfinishedError("half"), True),
        (StorageError("no"), False),
        (FileNotFoundError(), False),
        (FileExistsError(), False),
        (PermissionError(), False),
        (OSError(28, "No space left on device"), False),
        (ValueError(), False),
    ],
)
def test_the_network_passes_and_refusals_stay(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes
