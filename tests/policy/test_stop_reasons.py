from __future__ import annotations

from typing import Any

import pytest

from train_core.policy.stop_reasons import (
    Reached,
    StopLimits,
    StopReason,
    has_reached,
    is_final,
    reason_to_stop,
    still_holds,
)

LIMITS = StopLimits(epochs=3, max_steps=20, max_duration_s=60, early_stopping_patience=2)
SHORT = Reached(step=19, epoch=2, elapsed_s=59, num_bad_validations=1)


def test_the_values_are_those_of_manifests() -> None:
    limits = ["epochs", "max_steps", "early_stopping", "max_duration"]
    expected = [*limits, "function_end", "request", "failure"]
    assert [reason.value for reason in StopReason] == expected


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        (SHORT, None),
        (Reached(step=0, epoch=0), None),
        (Reached(step=9, epoch=3), "epochs"),
        (Reached(step=9, epoch=4), "epochs"),
        (Reached(step=20, epoch=2), "max_steps"),
        (Reached(step=9, epoch=2, num_bad_validations=2), "early_stopping"),
        # The first limit in this order is recorded.
        (Reached(step=20, epoch=3, num_bad_validations=2), "epochs"),
        (Reached(step=20, epoch=2, num_bad_validations=2), "max_steps"),
        # Rank 0's clock decides, and the other ranks receive its answer.
        (Reached(step=9, epoch=2, elapsed_s=99), None),
    ],
)
def test_a_training_ends_at_the_first_limit(reached: Reached, expected: str | None) -> None:
    assert reason_to_stop(reached, LIMITS) == expected


@pytest.mark.parametrize(
    ("flags", "at_a_limit", "expected"),
    [
        ({"is_duration_over": True}, False, "max_duration"),
        ({"is_asked_to_stop": True}, False, "request"),
        ({"is_asked_to_stop": True, "is_duration_over": True}, False, "request"),
        ({"is_asked_to_stop": True, "is_duration_over": True}, True, "max_steps"),
        ({"awaits_validation": True}, True, None),
        ({"awaits_validation": True, "is_asked_to_stop": True}, True, "request"),
    ],
)
def test_a_limit_goes_before_a_request_and_that_before_the_clock(
    flags: dict[str, Any], at_a_limit: bool, expected: str | None
) -> None:
    reached = Reached(step=20 if at_a_limit else 19, epoch=2)
    assert reason_to_stop(reached, LIMITS, **flags) == expected


def test_no_limit_but_epochs_is_there_unless_it_is_set() -> None:
    far = Reached(step=10**9, epoch=4, elapsed_s=1e9, num_bad_validations=10**6)
    assert reason_to_stop(far, StopLimits(epochs=5)) is None
    assert not has_reached(StopReason.MAX_DURATION, far, StopLimits(epochs=5))


@pytest.mark.parametrize(("elapsed_s", "is_up"), [(59.9, False), (60, True), (61, True)])
def test_time_is_up_at_its_limit(elapsed_s: float, is_up: bool) -> None:
    reached = Reached(step=1, epoch=0, elapsed_s=elapsed_s)
    assert has_reached(StopReason.MAX_DURATION, reached, LIMITS) == is_up


@pytest.mark.parametrize(
    ("stopped_by", "final"),
    [
        *((one, False) for one in ("", "request", "failure")),
        *((one, True) for one in list(StopReason)[:5]),
    ],
)
def test_a_request_or_a_failure_ends_no_training_for_good(stopped_by: str, final: bool) -> None:
    assert is_final(stopped_by) == final


@pytest.mark.parametrize(
    ("stopped_by", "limits", "holds"),
    [
        ("", StopLimits(epochs=1), False),
        ("request", StopLimits(epochs=1), False),
        ("a reason of a later version", StopLimits(epochs=1), False),
        ("epochs", StopLimits(epochs=2), True),
        ("epochs", StopLimits(epochs=1), True),
        ("epochs", StopLimits(epochs=3), False),
        ("max_steps", StopLimits(epochs=3, max_steps=10), True),
        ("max_steps", StopLimits(epochs=3, max_steps=11), False),
        ("max_steps", StopLimits(epochs=3), False),
        ("max_duration", StopLimits(epochs=3, max_duration_s=5), True),
        ("max_duration", StopLimits(epochs=3, max_duration_s=6), False),
        ("max_duration", StopLimits(epochs=3), False),
        ("early_stopping", StopLimits(epochs=3), True),
        ("function_end", StopLimits(epochs=3), True),
        # Another limit that is reached as well is not what ended it.
        ("max_steps", StopLimits(epochs=2, max_steps=11), False),
    ],
)
def test_a_finished_training_goes_on_if_its_limit_was_raised(
    stopped_by: str, limits: StopLimits, holds: bool
) -> None:
    reached = Reached(step=10, epoch=2, elapsed_s=5)
    assert still_holds(stopped_by, reached, limits) == holds
