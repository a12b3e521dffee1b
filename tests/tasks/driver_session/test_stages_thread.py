from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from evertrain_tasks.driver_session.stages_thread import StagesThread

CALLER: ContextVar[str] = ContextVar("caller")


def test_the_stages_run_in_the_callers_context() -> None:
    thread = StagesThread()
    assert not thread.wait_until_begun(0)
    CALLER.set("the flow")
    thread.begin(lambda: (CALLER.get(), threading.current_thread().name), without_flow=True)
    assert thread.wait_until_begun(0)
    assert thread.is_without_flow
    assert thread.result() == ("the flow", "stages")
    assert thread.wait_until_ended(0)


def test_an_error_of_the_stages_is_raised_where_their_result_is_waited_for() -> None:
    thread = StagesThread()

    def fail() -> None:
        raise ValueError("no such split")

    thread.begin(fail, without_flow=False)
    assert thread.wait_until_ended(30)
    with pytest.raises(ValueError, match="no such split"):
        thread.result()


def test_an_interrupt_of_the_stages_does_not_interrupt_the_thread_that_waits() -> None:
    thread = StagesThread()

    def interrupted() -> None:
        raise KeyboardInterrupt

    thread.begin(interrupted, without_flow=False)
    with pytest.raises(RuntimeError, match="the stages were interrupted"):
        thread.result()


def test_a_thread_that_still_runs_has_not_ended() -> None:
    thread, may_end = StagesThread(), threading.Event()
    thread.begin(lambda: may_end.wait(30), without_flow=False)
    assert not thread.wait_until_ended(0)
    may_end.set()
    assert thread.result()
