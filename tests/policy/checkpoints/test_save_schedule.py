from __future__ import annotations

from typing import Any, Literal

import pytest

from train_core.policy.checkpoints.save_schedule import (
    AfterStep,
    Backpressure,
    SaveDue,
    SaveRules,
    backpressure,
    is_due_by_clock,
    save_due,
)

NO, SCHEDULED, UNSCHEDULED = SaveDue
RULES = SaveRules(checkpoint_every_steps=4, checkpoint_every_epochs=2)


def if_busy(*, skips: bool) -> Literal["skip", "wait"]:
    return "skip" if skips else "wait"


def after(step: int = 3, epoch: int = 0, step_in_epoch: int = 3, **facts: Any) -> AfterStep:
    return AfterStep(step, epoch, step_in_epoch, **facts)


@pytest.mark.parametrize(
    ("at", "received", "expected"),
    [
        (after(), {}, NO),
        (after(4), {}, SCHEDULED),
        (after(10, epoch=2, step_in_epoch=0), {}, SCHEDULED),
        # The second epoch ended a step ago, and the third has not.
        (after(11, epoch=2, step_in_epoch=1), {}, NO),
        (after(5, epoch=1, step_in_epoch=0), {}, NO),
        (after(), {"is_due_by_clock": True}, SCHEDULED),
        (after(), {"is_retry_due": True}, UNSCHEDULED),
        (after(4), {"is_retry_due": True}, SCHEDULED),
        (after(stopped_by="max_steps"), {}, SCHEDULED),
        (after(stopped_by="max_duration"), {}, SCHEDULED),
        (after(stopped_by="request"), {}, UNSCHEDULED),
        (after(4, stopped_by="request"), {}, SCHEDULED),
    ],
)
def test_what_is_due_after_a_step(
    at: AfterStep, received: dict[str, bool], expected: SaveDue
) -> None:
    assert save_due(at, RULES, saved_step=-1, **received) is expected


@pytest.mark.parametrize("received", [{}, {"is_due_by_clock": True}])
def test_nothing_is_scheduled_before_the_validation_of_its_step(received: dict[str, bool]) -> None:
    waiting = {"step_in_epoch": 4, "awaits_validation": True}
    assert save_due(after(4, **waiting), RULES, saved_step=-1, **received) is NO
    stopped = after(4, **waiting, stopped_by="request")
    assert save_due(stopped, RULES, saved_step=-1, **received) is UNSCHEDULED


@pytest.mark.parametrize("stopped_by", ["", "request", "epochs"])
def test_a_step_is_saved_once(stopped_by: str) -> None:
    at = after(4, stopped_by=stopped_by)
    assert save_due(at, RULES, saved_step=4, is_due_by_clock=True, is_retry_due=True) is NO


@pytest.mark.parametrize(
    ("every_s", "since_last_s", "is_busy", "skips", "expected"),
    [
        (0, 1e9, False, False, False),
        (5, 4.9, False, False, False),
        (5, 5, False, False, True),
        (5, 5, True, False, True),
        (5, 5, False, True, True),
        (5, 5, True, True, False),
    ],
)
def test_time_makes_one_due_unless_it_would_be_left_out(
    every_s: float, since_last_s: float, is_busy: bool, skips: bool, expected: bool
) -> None:
    rules = SaveRules(checkpoint_every_s=every_s, checkpoint_backpressure=if_busy(skips=skips))
    assert is_due_by_clock(rules, since_last_s=since_last_s, is_busy=is_busy) is expected


@pytest.mark.parametrize(
    ("at", "is_busy", "skips", "expected"),
    [
        (after(4), False, True, Backpressure.NONE),
        (after(4), False, False, Backpressure.NONE),
        (after(4), True, True, Backpressure.SKIP),
        (after(4), True, False, Backpressure.WAIT),
        (after(4, is_validated=True), True, True, Backpressure.WAIT),
        (after(4, stopped_by="request"), True, True, Backpressure.WAIT),
        (after(4, stopped_by="epochs"), True, True, Backpressure.WAIT),
    ],
)
def test_one_in_flight_has_the_next_skipped_or_wait(
    at: AfterStep, is_busy: bool, skips: bool, expected: Backpressure
) -> None:
    rules = SaveRules(checkpoint_backpressure=if_busy(skips=skips))
    assert backpressure(at, rules, is_busy=is_busy) is expected
