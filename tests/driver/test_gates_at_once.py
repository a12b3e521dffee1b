"""Gates and people who act on one model at once, and die between any two events.

A rejected version never comes to serve, and each champion follows from one comparison with the
champion before it. Real gates, answers and rollbacks act on a real storage; only the scores of a
comparison are made up.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.champion.samples import MODEL, decision, write_earlier
from tests.policy.champion.test_model_state import check_answers, check_champions
from tests.storage.samples import commit, record
from train_core.champion.history import ModelHistory
from train_core.champion.log import Judge, ModelLog
from train_core.champion.records import Fault, Record, events_of
from train_core.client import champions
from train_core.driver import gate_stages
from train_core.driver.held_run import HeldRun
from train_core.errors import ConfigError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.champion.model_state import NextStep
from train_core.results import ChampionEntry, Decision, ModelVersion
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt, create_run

pytestmark = pytest.mark.timeout(240)

RUNS = ("a", "b", "c")
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Hundreds of small documents are made durable, for which a disk may take seconds each time."""
Draw = Callable[[list[Outcome]], Outcome]


class Gate(gate_stages.Gate):
    """A gate whose comparisons have the outcomes that a test draws."""

    draw: Draw

    def _compared(self, version: ModelVersion, champion: ChampionEntry | None) -> Decision:
        made = decision(
            version, champion.number if champion else 0, outcome=self.draw(list(Outcome))
        )
        return made.model_copy(update={"champion": champion.version if champion else None})


def begin(storage: str) -> None:
    """The runs, each with one checkpoint."""
    for run in RUNS:
        folder = RunFolder(storage, run)
        create_run(folder, record(run))
        commit(folder, 1, 1)


def pipeline(storage: str, run: str, draw: Draw) -> None:
    """The gate of a run, from registering to the champion."""
    folder = RunFolder(storage, run)
    held = HeldRun(folder, begin_attempt(folder))
    try:
        options = GateOptions(registered_model=MODEL)
        gate = Gate(folder, folder.record().config, options, held, pytest.fail)
        gate.draw = draw
        gate.promote(gate.decide(folder.summary(folder.checkpoints()[-1])), None)
    finally:
        held.lease.release()


def answer(storage: str, version: int, *, is_approved: bool) -> None:
    with suppress(ConfigError):
        champions.approve(storage, MODEL, version, "why", is_approved=is_approved)


def go_back(storage: str) -> None:
    with suppress(ConfigError):
        champions.rollback(storage, MODEL, "why")


def check(storage: str) -> None:
    """What no order of events may break."""
    history = ModelLog(storage, MODEL).read()
    history.check_whole()
    events = [
        event
        for one in history.found
        if not isinstance(one.record, Fault)
        for event in events_of(one.record)
    ]
    check_champions(events)
    check_answers(events)
    runs = [one.run for one in history.versions.values()]
    assert len(runs) == len(set(runs)), "a checkpoint has two versions"


def check_end(storage: str) -> None:
    """Whatever died, each run goes on to the end, and says what became of it."""
    # One that had been decided may become champion: those before it are compared with it then.
    for run in (*RUNS, *RUNS):
        pipeline(storage, run, lambda _: Outcome.KEEP)
    check(storage)
    history = ModelLog(storage, MODEL).read()
    assert sorted(one.run for one in history.versions.values()) == list(RUNS)
    left = {history.state.next_step(number) for number in history.versions}
    assert left <= {NextStep.SERVES, NextStep.REJECTED, NextStep.KEPT, NextStep.WAIT}


class KilledError(BaseException):
    """The process is no more."""


class Schedule:
    """What happens between a look at the log and the event that follows from it."""

    def __init__(self, data: st.DataObject, storage: str) -> None:
        self.data = data
        self.storage = storage
        self.left = 12
        self.driven: set[str] = set()

    def act(self) -> None:
        """One of those who act, up to the end or to its death."""
        run = st.sampled_from([run for run in RUNS if run not in self.driven] or [""])
        kind = self.data.draw(st.sampled_from(["gate", "gate", "yes", "no", "no", "back"]), "who")
        if kind == "gate":
            if name := self.data.draw(run, "run"):
                self.driven.add(name)
                with suppress(KilledError):
                    pipeline(self.storage, name, lambda of: self.data.draw(st.sampled_from(of)))
                self.driven.discard(name)
            return
        act: Callable[[], None] = partial(go_back, self.storage)
        if kind != "back":
            version = self.data.draw(st.integers(1, len(RUNS)), "version")
            act = partial(answer, self.storage, version, is_approved=kind == "yes")
        # Nobody has registered anything yet.
        with suppress(KilledError):
            act()

    def between(self) -> None:
        """Others act before the event is created, or this one dies."""
        while self.left and self.data.draw(st.booleans(), "others act first"):
            self.left -= 1
            self.act()
        self.die()

    def die(self) -> None:
        if self.left and self.data.draw(st.integers(0, 5), "dies at 5") == 5:
            self.left -= 1
            raise KilledError


class ScheduledLog(ModelLog):
    """A log between whose looks and events others act, as the schedule says."""

    schedule: Schedule

    def record(self, judge: Judge) -> ModelHistory:
        def judged(history: ModelHistory) -> Record | None:
            made = judge(history)
            if made is not None:
                self.schedule.between()
            return made

        history = super().record(judged)
        self.schedule.die()
        return history


@contextmanager
def scheduled(schedule: Schedule) -> Iterator[None]:
    ScheduledLog.schedule = schedule
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(champions, "ModelLog", ScheduledLog)
        patched.setattr(gate_stages, "ModelLog", ScheduledLog)
        yield


@pytest.mark.promise("no-is-final", "one-champion")
@pytest.mark.parametrize("is_before", [False, True], ids=["log", "before"])
@given(data=st.data())
@settings(max_examples=12)
def test_whoever_acts_or_dies_between_a_look_and_an_event_no_rejected_version_serves(
    data: st.DataObject, is_before: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        storage = f"{folder}/runs"
        begin(storage)
        if is_before:
            digest = RunFolder(storage, "a").checkpoints()[-1].digest
            first = decision().challenger.model_copy(
                update={"run": "a", "checkpoint_digest": digest}
            )
            asked = decision(first, outcome=data.draw(st.sampled_from(list(Outcome)), "before"))
            write_earlier(storage, first, asked)
        schedule = Schedule(data, storage)
        with scheduled(schedule):
            for _ in range(data.draw(st.integers(1, 4), "acts")):
                schedule.act()
        check(storage)
        check_end(storage)


def work(storage: str, number: int) -> None:
    """One of several that act again and again: the driver of a run, or a person."""
    chance = random.Random(number)
    for _ in range(6):
        if number < len(RUNS):
            pipeline(storage, RUNS[number], chance.choice)
        elif chance.random() < 0.3:
            go_back(storage)
        else:
            answer(storage, chance.randint(1, len(RUNS)), is_approved=chance.random() < 0.5)


@pytest.mark.slow
@pytest.mark.promise("no-is-final", "one-champion")
def test_gates_and_people_in_several_processes_leave_a_log_that_holds(tmp_path: Path) -> None:
    storage = str(tmp_path / "runs")
    begin(storage)
    with ProcessPoolExecutor(5, multiprocessing.get_context("spawn")) as processes:
        list(processes.map(partial(work, storage), range(5)))
    check(storage)
    check_end(storage)


@pytest.mark.promise("no-is-final", "one-champion")
def test_gates_and_people_in_several_threads_leave_a_log_that_holds(storage_url: str) -> None:
    begin(storage_url)
    together = threading.Barrier(5)

    def act(number: int) -> None:
        together.wait()
        work(storage_url, number)

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(act, range(5)))
    check(storage_url)
    check_end(storage_url)
