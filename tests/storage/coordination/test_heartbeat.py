"""One heartbeat: what is written, what sends it, and what judges it."""

from __future__ import annotations

import logging
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.errors import StorageError
from train_core.storage.coordination import lease
from train_core.storage.coordination.heartbeat import (
    HeartbeatObserver,
    HeartbeatSender,
    standing_still,
)
from train_core.storage.coordination.job_mailbox import Mailbox
from train_core.storage.objects.store import Store
from train_core.timing import CoordinationTiming

UNREACHABLE = "unreachable"


@pytest.mark.parametrize(
    ("observed", "still_s"),
    [
        ([], 20),
        ([(5, 0)], 20),
        ([(5, 1)], 15),
        ([(5, 1), (10, 1)], 15),
        ([(5, 1), (10, 2)], 10),
        ([(5, 1), (10, 2), (15, 2)], 10),
        ([(5, 1), (10, UNREACHABLE)], 10),
        ([(5, UNREACHABLE), (10, 0)], 15),
        ([(5, 1), (10, UNREACHABLE), (15, 2)], 5),
        # A process with another counter took its place: it lives.
        ([(5, 7), (10, 1)], 10),
    ],
)
def test_a_heartbeat_stands_still_while_its_counter_could_be_read_and_did_not_move(
    observed: list[tuple[float, int | str]], still_s: float
) -> None:
    observer = HeartbeatObserver[int | str](0, 0.0)
    for now, counter in observed:
        if counter == UNREACHABLE:
            observer.restart(now)
        else:
            observer.observe(counter, now)
    assert observer.still_s(20) == still_s


@given(counters=st.lists(st.integers(0, 3), min_size=1))
def test_it_stands_still_since_the_last_change(counters: list[int]) -> None:
    observer = HeartbeatObserver(0, 0.0)
    for now, counter in enumerate(counters, 1):
        observer.observe(counter, now)
    changes = [n for n, (a, b) in enumerate(pairwise([0, *counters]), 1) if a != b]
    assert observer.moved_at == max(changes, default=0)


@pytest.mark.parametrize(("moving", "still"), [((), ["a", "b"]), (("a",), ["b"]), (("a", "b"), [])])
def test_of_several_heartbeats_those_stand_still_that_do_not_move(
    store: Store, moving: tuple[str, ...], still: list[str]
) -> None:
    reads = {"a": 0, "b": 0}

    def read(key: str) -> int:
        reads[key] += 1
        return reads[key] // 2 if key in moving else 0

    timing = CoordinationTiming(lease_poll_interval_s=0.01)
    # One that never ends for want of a standstill ends once all have moved.
    standstill_s = 0.1 if still else 3600
    assert standing_still(store, {"a": 0, "b": 0}, read, standstill_s, timing) == still
    assert all(reads[key] == 2 for key in moving)
    assert not store.names("lease")


def test_where_reading_takes_long_a_heartbeat_may_stand_still_for_longer(store: Store) -> None:
    reads = 0

    def read(_key: str) -> int:
        nonlocal reads
        reads += 1
        time.sleep(0.02)
        return reads // 3

    timing = CoordinationTiming(lease_poll_interval_s=0.001, slow_reads=500)
    assert standing_still(store, {"a": 0}, read, 0.01, timing) == []


def test_what_is_written_stays_the_same(store: Store) -> None:
    held = lease.acquire(store, "run")
    held.send_heartbeat()
    assert store.read("lease/0001-beat.json") == b'{"counter":1,"released":false,"end":""}'
    held.end = "FAILED"
    held.release()
    assert store.read("lease/0001-beat.json") == b'{"counter":1,"released":true,"end":"FAILED"}'
    Mailbox(store, "job", "caller").send_heartbeat()
    assert store.read("calls/job/caller-beat.json") == b'{"counter":1}'


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
def test_a_heartbeat_that_fails_is_logged_once_and_others_follow(
    level: int, caplog: pytest.LogCaptureFixture
) -> None:
    sent, is_back = [0], threading.Event()

    def send() -> None:
        sent[0] += 1
        if sent[0] < 4:
            raise StorageError("503")
        is_back.set()

    sender = HeartbeatSender(send, 0.01, level)
    with caplog.at_level(level):
        sender.start()
        assert is_back.wait(30)
        sender.stop()
    told = [one.levelno for one in caplog.records if "was not written" in one.message]
    assert told == ([logging.WARNING] if level == logging.WARNING else [logging.DEBUG] * 3)
    after = sent[0]
    sender.stop()
    assert sent[0] == after
