"""Calls from far away: each is read and answered once, on any storage, and nothing stays."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.errors import CheckpointError
from train_core.stages import Answer
from train_core.storage.coordination.job_mailbox import Call, Mailbox, caller_of, jobs_with_calls
from train_core.storage.objects.store import Store
from train_core.timing import TIMING

JOB = "run-a0001-0a1b2c3d"


def test_a_call_is_answered(store: Store) -> None:
    caller, job = Mailbox(store, JOB), Mailbox(store, JOB)
    assert job.call_names() == []
    first = caller.ask("train", {})
    second = caller.ask("evaluate", {"split": "test", "checkpoints": [{"step": 3}]})
    assert jobs_with_calls(store) == [JOB]
    assert job.call_names() == [first, second]
    assert job.read(first) == Call(stage="train", arguments={})
    asked = {"split": "test", "checkpoints": [{"step": 3}]}
    assert job.read(second) == Call(stage="evaluate", arguments=asked)
    assert caller.answer_to(first, Answer[Any]) is None
    job.answer(second, Answer[Any](result=[1.5, None]).to_json())
    assert caller.answer_to(first, Answer[Any]) is None
    assert caller.answer_to(second, Answer[Any]) == Answer[Any](result=[1.5, None])
    # What was taken is gone, and what was not is there.
    assert job.call_names() == [first]
    assert job.read(second) is None


def test_callers_do_not_meet_and_jobs_neither(store: Store) -> None:
    one, another, elsewhere = Mailbox(store, JOB), Mailbox(store, JOB), Mailbox(store, "other")
    asked = {one.ask("train", {}), another.ask("train", {})}
    assert len(asked) == 2
    assert set(Mailbox(store, JOB).call_names()) == asked
    assert elsewhere.call_names() == []


def test_an_error_is_an_answer(store: Store) -> None:
    calls = Mailbox(store, JOB)
    name = calls.ask("train", {})
    calls.answer(name, Answer[Any](error={"type": "ConfigError", "facts": ["no"]}).to_json())
    found = calls.answer_to(name, Answer[Any])
    assert found
    assert found.error == {"type": "ConfigError", "facts": ["no"]}


def test_what_nobody_takes_is_cleared_away_when_the_time_is_over(store: Store) -> None:
    calls = Mailbox(store, JOB)
    name = calls.ask("train", {})
    calls.answer(name, Answer[Any](result=1).to_json())
    calls.clear(name, within_s=0.1)
    assert jobs_with_calls(store) == []


def test_clearing_waits_for_the_caller_that_takes_an_answer(store: Store) -> None:
    caller, job = Mailbox(store, JOB), Mailbox(store, JOB)
    # Whoever asked for this is gone.
    Mailbox(store, JOB).ask("train", {})
    name = caller.ask("close", {})
    job.answer(name, Answer[Any](result=7).to_json())
    clearing = threading.Thread(target=job.clear, args=(name, 60))
    clearing.start()
    try:
        assert caller.answer_to(name, Answer[Any]) == Answer[Any](result=7)
    finally:
        clearing.join(60)
    assert not clearing.is_alive()
    assert jobs_with_calls(store) == []


def test_what_is_no_call_is_not_read_as_one(store: Store) -> None:
    calls = Mailbox(store, JOB)
    name = calls.ask("train", {})
    for other in ("notes.json", f"{name}.txt", "x.json"):
        store.write(f"calls/{JOB}/{other}", b"{}")
    assert calls.call_names() == [name]
    store.write(f"calls/{JOB}/{name}.json", b"\x80\x04K\x01.")
    with pytest.raises(CheckpointError, match="not a call"):
        calls.read(name)


def test_a_callers_heartbeat_is_read(store: Store) -> None:
    caller, job = Mailbox(store, JOB), Mailbox(store, JOB)
    name = caller.ask("train", {})
    assert job.heartbeat_of(caller_of(name)) == 0
    for counter in (1, 2):
        caller.send_heartbeat()
        assert job.heartbeat_of(caller_of(name)) == counter
    assert job.call_names() == [name]


def test_a_call_can_be_taken_back(store: Store) -> None:
    caller, job = Mailbox(store, JOB), Mailbox(store, JOB)
    name = caller.ask("train", {})
    caller.cancel(name)
    assert job.call_names() == []
    assert job.read(name) is None


@given(waited_s=st.floats(0, 1e6))
def test_an_answer_is_found_a_twentieth_later_than_it_came_or_a_second(waited_s: float) -> None:
    assert 0.05 <= TIMING.coordination.pause_s(waited_s) <= 1
    assert TIMING.coordination.pause_s(waited_s) <= max(0.05, waited_s / 20)
