"""The delivery loop, with a sender whose failures are scheduled."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from train_core.timing import TrackingTiming
from train_core.tracking.delivery.delivery_thread import Delivery, Outage

QUICK = TrackingTiming(poll_s=0.01, max_backoff_s=0.02, down_after_s=0.1)


class ListSender:
    """Delivers from one list into another; the attempts whose numbers are in `fails` fail."""

    def __init__(self, fails: range = range(0)) -> None:
        self.fails = fails
        self.committed: list[int] = []
        self.delivered: list[int] = []
        self.attempts = 0
        self.is_connected = False

    def connect(self) -> None:
        self.is_connected = True

    def poll(self) -> None:
        pass

    def deliver(self) -> None:
        self.attempts += 1
        if self.attempts in self.fails:
            raise ConnectionError(f"attempt {self.attempts}")
        self.delivered = list(self.committed)

    def describe(self, error: Exception) -> str:
        return str(error)


class SlowSender(ListSender):
    """Is in its first attempt, having looked at what there is, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.has_looked, self.go_on = threading.Event(), threading.Event()

    def deliver(self) -> None:
        super().deliver()
        self.has_looked.set()
        assert self.go_on.wait(60)


@contextmanager
def delivering(sender: ListSender, timing: TrackingTiming = QUICK) -> Iterator[Delivery]:
    delivery = Delivery("delivering", sender, timing)
    delivery.start()
    try:
        yield delivery
    finally:
        delivery.close()


@pytest.mark.parametrize(
    ("since", "last", "now", "is_due"),
    [
        (0, 0, 0, True),
        (0, 1, 1.5, False),
        (0, 1, 2, True),
        (0, 30, 59, False),
        (0, 30, 60, True),
        (0, 1000, 1059, False),
        (0, 1000, 1060, True),
    ],
)
def test_an_outage_doubles_between_attempts_up_to_a_minute(
    since: float, last: float, now: float, is_due: bool
) -> None:
    assert Outage(since, last).is_attempt_due(now, max_backoff_s=60) is is_due


@pytest.mark.parametrize(
    ("outage", "began", "ends"),
    [
        # One that is long, with a failure since the wait began, or with none yet.
        (Outage(0, 9), 8, True),
        (Outage(0, 7), 8, False),
        # One that is short.
        (Outage(6, 9), 8, False),
    ],
)
def test_a_wait_ends_after_one_more_failure_in_a_long_outage(
    outage: Outage, began: float, ends: bool
) -> None:
    assert outage.ends_wait(began, now=10, down_after_s=5) is ends


def test_an_outage_begins_with_its_first_failure() -> None:
    first = Outage.extended(None, 3)
    assert (first, Outage.extended(first, 5)) == (Outage(3, 3), Outage(3, 5))


def test_what_is_flushed_is_delivered() -> None:
    sender = ListSender()
    with delivering(sender) as delivery:
        for number in range(5):
            sender.committed.append(number)
            assert delivery.flush(30)
            assert sender.delivered == sender.committed
    assert sender.is_connected


def test_what_failed_is_tried_again_and_an_outage_is_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = ListSender(fails=range(1, 4))
    sender.committed.append(1)
    patient = TrackingTiming(poll_s=0.01, max_backoff_s=0.02)
    with caplog.at_level(logging.WARNING), delivering(sender, patient) as delivery:
        assert delivery.flush(30)
    assert sender.delivered == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "delivering fails, and is tried again: attempt 1",
        "delivering goes on",
    ]


def test_a_flush_gives_up_in_a_long_outage() -> None:
    sender = ListSender(fails=range(1, 100_000))
    with delivering(sender) as delivery:
        begin = time.monotonic()
        assert not delivery.flush(60)
        assert time.monotonic() - begin < 20
        assert not delivery.flush(60)


def test_nothing_is_delivered_after_the_finish() -> None:
    sender = ListSender()
    finished: list[int] = []
    with delivering(sender) as delivery:
        sender.committed.append(1)
        delivery.finish_with_next_flush(lambda: finished.extend(sender.delivered))
        assert delivery.flush(30)
        attempts = sender.attempts
        delivery._thread.join(30)
    assert (finished, sender.attempts) == ([1], attempts)


def test_a_finish_that_fails_is_tried_again() -> None:
    sender, tries = ListSender(), list[int]()

    def finish() -> None:
        tries.append(sender.attempts)
        if len(tries) == 1:
            raise ConnectionError

    with delivering(sender) as delivery:
        delivery.finish_with_next_flush(finish)
        assert delivery.flush(30)
    assert len(tries) == 2


def test_a_finish_in_the_middle_of_an_attempt_waits_for_the_next() -> None:
    sender = SlowSender()
    finished: list[int] = []
    with delivering(sender) as delivery:
        assert sender.has_looked.wait(60)
        sender.committed.append(1)
        delivery.finish_with_next_flush(lambda: finished.extend(sender.delivered))
        sender.go_on.set()
        assert delivery.flush(30)
    assert finished == [1]


def test_one_that_was_never_started_only_connects() -> None:
    sender = ListSender()
    delivery = Delivery("delivering", sender, QUICK)
    delivery.wait_until_connected(30)
    delivery.close()
    assert (sender.is_connected, sender.attempts) == (True, 0)
