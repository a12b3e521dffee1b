"""Slots on a real Ray: one is replaced while the others live, and each call has an outcome."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray.exceptions import RayActorError

from train_core import TrainConfig
from train_core.cluster.outcomes import Died, Outcome, Raised, Returned, Running
from train_core.cluster.slots import Layout, Slots
from train_core.cluster.worker_calls import Calls
from train_core.errors import UserCodeError
from train_core.timing import TIMING

pytestmark = [pytest.mark.usefixtures("process_ray"), pytest.mark.timeout(180)]
CONFIG = TrainConfig(num_workers=4, cpus_per_worker=0.25, gpus_per_worker=0)
HERE = "tests.cluster.functions"


@pytest.fixture
def slots(request: pytest.FixtureRequest) -> Iterator[Slots]:
    """Four, if the test does not ask for fewer."""
    given = {"num_workers": getattr(request, "param", CONFIG.num_workers)}
    found = Slots.start(Layout.of(CONFIG.model_copy(update=given)), [HERE])
    yield found
    found.end()


def called(slots: Slots, given: dict[int, tuple[str, tuple[object, ...]]]) -> Calls:
    """A function of `functions.py`, and its arguments, called in each of these slots."""
    calls = Calls(0, TIMING.cluster)
    for slot, (function, arguments) in given.items():
        worker = slots.workers[slot]
        calls.add(slot, worker, worker.run.remote(f"{HERE}:{function}", arguments))
    return calls


def pids(slots: Slots) -> dict[int, int]:
    """The processes of all slots."""
    outcomes = called(slots, dict.fromkeys(range(len(slots.workers)), ("pid", ()))).settle()
    return {slot: value(outcome) for slot, outcome in outcomes.items()}


def value(outcome: Outcome) -> int:
    assert isinstance(outcome, Returned), outcome
    return int(outcome.value)


def test_one_slot_is_replaced_while_the_others_live(slots: Slots, tmp_path: Path) -> None:
    before = pids(slots)
    die, go_on = tmp_path / "die", tmp_path / "go-on"
    calls = called(
        slots,
        {
            0: ("pid", ()),
            1: ("die_after", (str(die),)),
            2: ("quit_measuring", (2,)),
            3: ("pid_after", (str(go_on),)),
        },
    )
    results = [calls.running[slot][1] for slot in (0, 2)]
    ray.wait(results, num_returns=2)
    die.touch()
    outcomes = calls.settle()
    assert outcomes[0] == Returned(before[0])
    assert isinstance(outcomes[1], Died)
    assert isinstance(outcomes[1].cause, RayActorError)
    assert isinstance(outcomes[2], Raised)
    assert isinstance(outcomes[2].error, UserCodeError)
    assert outcomes[3] == Running()

    slots.replace(1)
    go_on.touch()
    assert calls.settle() == {3: Returned(before[3])}
    after = pids(slots)
    assert after.pop(1) != before.pop(1)
    assert after == before


def a_spare(slots: Slots, mark: Path) -> int:
    """The process of a spare that has prepared itself."""
    slots.start_spare(0, f"{HERE}:note_pid", (str(mark),))
    ray.wait([slots.spares[0]._prepared])
    return int(mark.read_text())


@pytest.mark.parametrize("slots", [2], indirect=True)
def test_a_spare_takes_the_place_of_a_worker_that_died(slots: Slots, tmp_path: Path) -> None:
    before, spare = pids(slots), a_spare(slots, tmp_path / "spare")
    assert spare not in before.values()
    os.kill(before[1], signal.SIGKILL)
    slots.replace(1)
    assert pids(slots) == before | {1: spare}
    assert slots.spares == []
    os.kill(spare, signal.SIGKILL)
    slots.replace(1)
    assert pids(slots)[1] not in (spare, before[1])


@pytest.mark.slow
def test_the_death_of_a_spare_ends_nothing(slots: Slots, tmp_path: Path) -> None:
    before, spare = pids(slots), a_spare(slots, tmp_path / "spare")
    process = psutil.Process(spare)
    process.kill()
    process.wait(10)
    slots.replace(1)
    after = pids(slots)
    assert after.pop(1) not in (spare, before.pop(1))
    assert after == before


@pytest.mark.slow
def test_a_spare_that_dies_as_it_prepares_itself_says_why(slots: Slots, tmp_path: Path) -> None:
    pids(slots)
    slots.start_spare(0, f"{HERE}:die_after", (str(tmp_path / "die"),))
    assert slots.dead_spares() == []
    Path(tmp_path, "die").touch()
    ray.wait([slots.spares[0]._prepared])
    ((node, error),) = slots.dead_spares()
    assert node == slots.nodes()[0]
    assert isinstance(error, RayActorError)
    assert slots.spares == []


@pytest.mark.slow
def test_a_worker_that_stands_still_is_ended_as_it_is_replaced(slots: Slots) -> None:
    still = psutil.Process(pids(slots)[0])
    os.kill(still.pid, signal.SIGSTOP)
    slots.replace(0)
    assert pids(slots)[0] != still.pid
    _, alive = psutil.wait_procs([still], timeout=10)
    assert not alive
