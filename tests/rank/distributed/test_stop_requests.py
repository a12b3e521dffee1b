"""The requests to stop of one attempt, as its driver and its ranks ask for them."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from train_core.errors import AttemptLostError
from train_core.policy.restarts import Asked
from train_core.rank.distributed.rendezvous import LOOPBACK, RendezvousStore
from train_core.rank.distributed.stop_requests import LOST, PostedByDriver, StopRequests
from train_core.storage.coordination.stop_request import StopRequest
from train_core.timing import StopTiming

END = StopRequest(reason="Ctrl-C")


def no_source() -> StopRequest | None:
    return None


def test_a_request_to_end_outranks_one_to_move_and_stands() -> None:
    requests = StopRequests(no_source, poll_s=1)
    assert (requests.asked, requests.is_asked) == (Asked.NOTHING, False)
    requests.ask_to_move("a drain")
    assert (requests.asked, requests.is_asked) == (Asked.MOVE, True)
    requests.ask(END)
    requests.ask_to_move("another drain")
    assert requests.newest == END


def test_the_grace_is_that_of_a_request_to_end_and_begins_with_it() -> None:
    requests = StopRequests(no_source, poll_s=1)
    assert not requests.is_older_than(0)
    requests.ask_to_move("a drain")
    time.sleep(0.02)
    assert requests.is_older_than(0.01)
    assert not requests.is_grace_over(0.01)
    requests.ask(END)
    assert not requests.is_older_than(10)
    assert not requests.is_grace_over(10)
    time.sleep(0.02)
    assert requests.is_grace_over(0.01)


def test_ranks_keep_some_of_their_grace_for_ending() -> None:
    assert StopTiming(end_s=3).time_to_save_s(20) == 17
    assert StopTiming(end_s=3).time_to_save_s(4) == 2


def test_a_source_is_asked_until_it_gives_a_request_to_end() -> None:
    given = [None, StopRequest(reason="a drain", goes_on=True), END]
    requests = StopRequests(lambda: given.pop(0), poll_s=1)
    for asked in (Asked.NOTHING, Asked.MOVE, Asked.END, Asked.END):
        requests.poll()
        assert requests.asked is asked
    assert given == []


def test_ranks_are_sent_what_came_before_and_what_could_not_be_sent() -> None:
    received, refusals = [], [ConnectionError("not yet"), ConnectionError("not yet")]

    def send(request: StopRequest) -> None:
        if refusals:
            raise refusals.pop()
        received.append(request)

    requests = StopRequests(no_source, poll_s=1)
    requests.ask(END)
    requests.send_by(send)
    requests.poll()
    assert received == []
    requests.poll()
    requests.poll()
    assert received == [END]


def test_a_rank_learns_that_the_attempt_is_lost() -> None:
    store = RendezvousStore(LOOPBACK)
    requests = StopRequests(PostedByDriver(store.membership("run/1", 0, 2, 0)), poll_s=1)
    requests.poll()
    requests.check_lost()
    store.post("run/1", LOST, "rank 1 died")
    requests.poll()
    with pytest.raises(AttemptLostError, match="rank 1 died"):
        requests.check_lost()
    assert not requests.is_asked


TERMINATED = """
import os, signal
from train_core.inside import note_sigterm
from train_core.rank.distributed import stop_requests as here
from train_core.rank.distributed.rendezvous import LOOPBACK, RendezvousStore

signal.signal(signal.SIGTERM, lambda *_: None)
note_sigterm()
store = RendezvousStore(LOOPBACK)
answers = []
source = here.PostedByDriver(store.membership("run/1", 1, 2, 0), lambda: answers.pop(0))
"""


def terminated(script: str) -> None:
    """Run it in a process that can get SIGTERM."""
    subprocess.run([sys.executable, "-c", TERMINATED + script], check=True)


@pytest.mark.promise("sigterm-of-a-worker")
def test_a_rank_that_got_sigterm_leaves_it_to_the_driver_where_the_others_have_its_state() -> None:
    terminated("""
answers[:] = [True, True, True]
assert source() is None
assert here.ranks_that_leave(store, "run/1", 2) == set()
os.kill(os.getpid(), signal.SIGTERM)
assert source() is None
assert here.ranks_that_leave(store, "run/1", 2) == {1}
""")


@pytest.mark.promise("sigterm-of-a-worker")
def test_a_rank_whose_state_nobody_else_has_asks_to_move_and_is_not_ended_as_it_saves() -> None:
    terminated("""
os.kill(os.getpid(), signal.SIGTERM)
answers[:] = [False, True]
for _ in range(2):
    assert source().goes_on
assert here.ranks_that_leave(store, "run/1", 2) == set()
""")
