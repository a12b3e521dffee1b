from __future__ import annotations

from typing import Any

import pytest

from train_core.policy.restarts import (
    Asked,
    AttemptEnd,
    Decision,
    Ended,
    Next,
    RestartRules,
    after_attempt,
)

RULES = RestartRules()
NOTHING, MOVE, END = Asked
IN_ORDER, LOST, AS_ASKED, RAISED, FAILED = Ended


@pytest.mark.parametrize(
    ("ended", "asked", "facts", "expected"),
    [
        (IN_ORDER, NOTHING, {}, Next.DONE),
        # It came to its own end in the step of the request.
        (IN_ORDER, MOVE, {}, Next.DONE),
        (IN_ORDER, END, {}, Next.DONE),
        (IN_ORDER, MOVE, {"has_stopped": True}, Next.MOVE),
        (IN_ORDER, END, {"has_stopped": True}, Next.STOPPED),
        (IN_ORDER, NOTHING, {"has_stopped": True}, Next.STOPPED),
        # The storage did not take its last checkpoint.
        (IN_ORDER, END, {"has_saved": False}, Next.STOPPED),
        (LOST, NOTHING, {}, Next.RESTART),
        (LOST, MOVE, {}, Next.RESTART),
        (LOST, END, {}, Next.STOPPED),
        (LOST, END, {"has_progress": True}, Next.STOPPED),
        # It has saved its last checkpoint, and died while it tidied up.
        (LOST, NOTHING, {"has_finished": True}, Next.DONE),
        (LOST, END, {"has_finished": True}, Next.DONE),
        (AS_ASKED, MOVE, {}, Next.MOVE),
        (AS_ASKED, END, {}, Next.STOPPED),
        (AS_ASKED, END, {"has_progress": True}, Next.STOPPED),
        (AS_ASKED, MOVE, {"has_finished": True}, Next.DONE),
        (RAISED, NOTHING, {"has_finished": True}, Next.DONE),
        (FAILED, NOTHING, {"has_finished": True}, Next.FAIL),
        (FAILED, NOTHING, {}, Next.FAIL),
        (FAILED, MOVE, {}, Next.FAIL),
        (FAILED, END, {"has_progress": True}, Next.FAIL),
    ],
)
def test_what_follows_an_attempt(
    ended: Ended, asked: Asked, facts: dict[str, Any], expected: Next
) -> None:
    assert after_attempt(AttemptEnd(ended, asked, **facts), 0, RULES).next is expected


@pytest.mark.promise("three-restarts")
@pytest.mark.parametrize(
    ("restarts", "has_progress", "expected"),
    [
        (0, False, Decision(Next.RESTART, 1, 0.0)),
        (1, False, Decision(Next.RESTART, 2, 2.0)),
        (2, False, Decision(Next.RESTART, 3, 6.0)),
        (3, False, Decision(Next.GIVE_UP, 4)),
        # The count begins anew.
        (3, True, Decision(Next.RESTART, 1, 0.0)),
    ],
)
def test_an_attempt_that_died_is_followed_by_three_others_without_progress(
    restarts: int, has_progress: bool, expected: Decision
) -> None:
    end = AttemptEnd(LOST, has_progress=has_progress)
    assert after_attempt(end, restarts, RULES) == expected


@pytest.mark.parametrize(
    ("failures", "max_failures", "asked", "expected"),
    [
        (0, 0, NOTHING, Next.FAIL),
        (0, 1, NOTHING, Next.RESTART),
        (1, 1, NOTHING, Next.FAIL),
        (7, -1, NOTHING, Next.RESTART),
        (0, 1, END, Next.STOPPED),
        (0, 1, MOVE, Next.RESTART),
        (0, 0, END, Next.FAIL),
    ],
)
def test_a_training_function_may_raise_as_many_errors_as_it_is_allowed(
    failures: int, max_failures: int, asked: Asked, expected: Next
) -> None:
    rules = RestartRules(max_failures=max_failures)
    decision = after_attempt(AttemptEnd(RAISED, asked), 3, rules, failures)
    assert (decision.next, decision.failures) == (expected, failures + 1)


def test_a_process_that_died_is_no_error_of_the_function() -> None:
    rules = RestartRules(max_failures=2)
    assert after_attempt(AttemptEnd(LOST), 0, rules, failures=2).failures == 2


def test_a_move_makes_the_count_begin_anew() -> None:
    for end in (AttemptEnd(IN_ORDER, MOVE, has_stopped=True), AttemptEnd(AS_ASKED, MOVE)):
        assert after_attempt(end, 3, RULES) == Decision(Next.MOVE, 0, 0.0)
