"""What the driver in a cluster makes of calls that are none, of a wrong place, and of silence."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from tests.marks import slow
from tests.waiting import wait_for
from train_core import TrainConfig
from train_core.described_errors import rebuild
from train_core.driver.job.mailbox_transport import MailboxTransport
from train_core.driver.ray_session import ClusterRaySession
from train_core.driver.run_stages import stages_of
from train_core.driver.server import Stages, StageServer
from train_core.errors import ConfigError, NotFiniteError, StageError, StorageError
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest, Prepared, Request
from train_core.stages import Answer
from train_core.storage.coordination.job_mailbox import THE_JOB, Mailbox
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.timing import TIMING, CoordinationTiming, Timing

JOB = "run-a0001-0a1b2c3d"
JUNK = f"{'0' * 32}-0001"
MAILBOX = CoordinationTiming()
QUICK = CoordinationTiming(mailbox_heartbeat_s=0.2, mailbox_standstill_s=3.0)
"""Heartbeats are read more often, and missed sooner."""

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    return RunFolder(storage_url, "run")


class Idle:
    """Stages that do nothing: there is no cluster to prepare them on."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def prepare(self) -> Prepared:
        return Prepared(run="run", url="", resumed=False, num_samples={}, total_steps=0)

    def ask(self, stage: str, arguments: dict[str, Any]) -> Answer[Any]:
        raise StageError("train", "nobody trains here")

    def failed(self, message: str) -> None:
        """Nobody is told."""

    def close(self, status: str) -> None:
        """Nothing was begun."""


def of_a_job(request: Request) -> Stages:
    return stages_of(request, ClusterRaySession(), JOB)


def transport_of(
    folder: RunFolder, first: str, timing: Timing = TIMING, mailbox: CoordinationTiming = MAILBOX
) -> MailboxTransport:
    return MailboxTransport(Mailbox(folder.store, JOB, THE_JOB, timing=mailbox), first, timing)


def serving(transport: MailboxTransport, pool: ThreadPoolExecutor) -> Future[str | None]:
    return pool.submit(StageServer(transport, Idle).serve)


def test_what_is_no_call_is_answered_with_its_fault_and_the_next_one_is_heard(
    folder: RunFolder,
) -> None:
    caller = Mailbox(folder.store, JOB)
    folder.store.write(f"calls/{JOB}/{JUNK}.json", b"\x80\x04junk")
    folder.store.write(f"calls/{JOB}/notes.txt", b"nothing of ours")
    no_stage = caller.ask("explode", {})
    no_request = caller.ask("prepare", {"request": {"run": "run"}})
    with ThreadPoolExecutor(1) as pool:
        # Only what was prepared can go on.
        server = StageServer(transport_of(folder, JUNK), of_a_job)
        assert pool.submit(server.serve).result() is None
    assert "not a call" in told(caller.answer_to(JUNK, Answer[Any]))
    assert "there is no stage 'explode'" in told(caller.answer_to(no_stage, Answer[Any]))
    assert "storage" in told(caller.answer_to(no_request, Answer[Any]))


class Diverges(Idle):
    """Whose training ends with a loss that is no number."""

    def __init__(self, request: Request, loss: float) -> None:
        super().__init__(request)
        self._loss = loss

    def ask(self, stage: str, arguments: dict[str, Any]) -> Answer[Any]:
        raise NotFiniteError(3, self._loss, None)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_reaches_the_caller_as_what_it_is(
    folder: RunFolder, loss: float
) -> None:
    caller = Caller(folder)
    training = caller.calls.ask("train", {})
    server = StageServer(transport_of(folder, caller.first), partial(Diverges, loss=loss))
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(server.serve)
        error = rebuild(caller.answered(training).error)
        caller.close()
        assert served.result() == EndStatus.FINISHED
    caller.die()
    assert isinstance(error, NotFiniteError)
    assert repr(error.loss) == repr(loss)


class Caller:
    """Somebody who calls, and lives until it is `dead`."""

    def __init__(self, folder: RunFolder, name: str = "", **config: Any) -> None:
        self.calls = Mailbox(folder.store, JOB, name)
        self.calls.send_heartbeat()
        wanted = DriverRequest(storage=folder.storage, run="run", config=TrainConfig(**config))
        self.first = self.calls.ask("prepare", {"request": wanted.model_dump(mode="json")})
        self.dead = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def close(self) -> str:
        return self.calls.ask("close", {"status": "FINISHED"})

    def answered(self, name: str) -> Answer[Any]:
        return wait_for(lambda: self.calls.answer_to(name, Answer[Any]), 30)

    def die(self) -> None:
        self.dead.set()
        self._heart.join()

    def _beat(self) -> None:
        while not self.dead.wait(0.2):
            self.calls.send_heartbeat()


@contextmanager
def two_callers(folder: RunFolder) -> Iterator[tuple[Future[str | None], Caller, Caller]]:
    """A job that is prepared, and the two that have attached to it."""
    one, other = Caller(folder), Caller(folder)
    with ThreadPoolExecutor(1) as pool:
        served = serving(transport_of(folder, one.first, mailbox=QUICK), pool)
        for caller in (one, other):
            caller.answered(caller.first)
        yield served, one, other


@pytest.mark.promise("last-caller")
def test_a_caller_that_comes_while_another_one_closes_keeps_the_job(folder: RunFolder) -> None:
    with two_callers(folder) as (served, leaving, dying):
        dying.die()
        closing = leaving.close()
        late = Caller(folder)
        late.answered(late.first)
        leaving.answered(closing)
        assert not served.done()
        ending = late.close()
        assert served.result() == EndStatus.FINISHED
        late.answered(ending)
    for caller in (leaving, late):
        caller.die()


@dataclass(frozen=True)
class OneLongPause(CoordinationTiming):
    """The job looks for calls again after ten minutes, unless it is woken; soon after that."""

    has_begun: threading.Event = field(default_factory=threading.Event)

    def pause_s(self, waited_s: float) -> float:
        if self.has_begun.is_set():
            return 0.05
        self.has_begun.set()
        return 600.0


class Held(Idle):
    """Whose training ends once the job pauses."""

    def __init__(self, request: Request, pauses: threading.Event) -> None:
        super().__init__(request)
        self._pauses = pauses

    def ask(self, stage: str, arguments: dict[str, Any]) -> Answer[Any]:
        assert self._pauses.wait(30)
        return super().ask(stage, arguments)


def test_an_answer_is_sent_as_soon_as_its_stage_has_ended(folder: RunFolder) -> None:
    caller = Caller(folder)
    training = caller.calls.ask("train", {})
    timing = OneLongPause()
    transport = transport_of(folder, caller.first, mailbox=timing)
    server = StageServer(transport, partial(Held, pauses=timing.has_begun))
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(server.serve)
        assert "nobody trains here" in told(caller.answered(training))
        caller.close()
        assert served.result() == EndStatus.FINISHED
    caller.die()


class Counted(Idle):
    """Whose stages are carried out one at a time, and noted."""

    def __init__(self, request: Request, done: list[str], may_go_on: threading.Event) -> None:
        super().__init__(request)
        self._done, self._may_go_on = done, may_go_on

    def ask(self, stage: str, arguments: dict[str, Any]) -> Answer[Any]:
        self._done.append(stage)
        assert self._may_go_on.wait(30)
        return Answer[Any](result=arguments)


def test_what_two_callers_want_of_the_same_arguments_is_done_once_for_both(
    folder: RunFolder,
) -> None:
    one, other = Caller(folder), Caller(folder)
    done: list[str] = []
    may_go_on = threading.Event()
    server = StageServer(
        transport_of(folder, one.first, mailbox=QUICK),
        partial(Counted, done=done, may_go_on=may_go_on),
    )
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(server.serve)
        for caller in (one, other):
            caller.answered(caller.first)
        same = {"split": "test", "checkpoints": [{"step": 3}]}
        both = [caller.calls.ask("evaluate", same) for caller in (one, other)]
        another = one.calls.ask("evaluate", same | {"split": "validation"})
        # Long enough for the job to have read all three.
        time.sleep(3 * QUICK.longest_pause_s)
        may_go_on.set()
        for caller, name in zip((one, other), both, strict=True):
            assert caller.answered(name).unwrapped() == same
        assert one.answered(another).unwrapped() != same
        assert len(done) == 2
        other.die()
        one.answered(one.close())
        assert served.result() == EndStatus.FINISHED
    one.die()


def test_two_that_close_at_once_are_both_answered(folder: RunFolder) -> None:
    with two_callers(folder) as (served, one, other):
        one.die()
        other.die()
        closed = [(caller, caller.close()) for caller in (one, other)]
        for caller, name in closed:
            caller.answered(name)
        assert served.result() == EndStatus.FINISHED


def test_the_heart_of_a_job_moves_while_it_lives(folder: RunFolder) -> None:
    with two_callers(folder) as (served, one, other):
        wait_for(lambda: one.calls.heartbeat_of(THE_JOB) >= 3, 30)
        other.die()
        one.answered(one.close())
        assert served.result() == EndStatus.FINISHED
        one.die()
    assert not [thread for thread in threading.enumerate() if "beat" in thread.name]


def told(answer: Answer[Any] | None) -> str:
    assert answer
    assert answer.error
    return str(answer.error)


def test_a_job_that_sees_another_place_than_its_caller_says_so(folder: RunFolder) -> None:
    soon = replace(TIMING, first_call_wait_s=0.5)
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(ConfigError, match=r"another place on the cluster .* such as s3://"),
    ):
        serving(transport_of(folder, JUNK, soon), pool).result()


def test_a_job_takes_the_call_that_it_was_started_with_before_any_other(folder: RunFolder) -> None:
    # It died before it had submitted its job, and its call comes first by its name.
    dead = Caller(folder, "0" * 32, epochs=3)
    dead.die()
    caller = Caller(folder, "f" * 32, epochs=2)
    with ThreadPoolExecutor(1) as pool:
        served = serving(transport_of(folder, caller.first, mailbox=QUICK), pool)
        assert caller.answered(caller.first).error is None
        assert "another epochs" in told(dead.answered(dead.first))
        caller.close()
        assert served.result() == EndStatus.FINISHED
    caller.die()


@pytest.mark.promise("last-caller")
def test_a_job_that_nobody_calls_any_more_ends(folder: RunFolder) -> None:
    soon, missed_soon = replace(TIMING, linger_s=1.0), CoordinationTiming(mailbox_standstill_s=1.0)
    name = Mailbox(folder.store, JOB).ask("explode", {})
    with ThreadPoolExecutor(1) as pool:
        assert (
            serving(transport_of(folder, name, soon, missed_soon), pool).result()
            == EndStatus.FAILED
        )


class NoAnswers(Store):
    """Takes all but answers."""

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        if "answer" in key:
            raise StorageError("the storage is away")
        super().write(key, data, durable=durable)


def test_a_job_that_can_tell_nobody_how_it_ended_says_so_in_its_log_and_ends(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    soon = replace(TIMING, cut_off_s=1.0)
    job = RunFolder(folder.storage, "run")
    job.store = NoAnswers(folder.url)
    caller = Caller(folder)
    failed = caller.calls.ask("explode", {})
    with ThreadPoolExecutor(1) as pool:
        served = serving(transport_of(job, failed, soon), pool)
        # Its caller lives and waits all the time.
        assert served.result(30) == EndStatus.FAILED
    assert "the storage is away" in caplog.text
    assert "there is no stage 'explode'" in caplog.text
    assert "the outcome could not be stored" in caplog.text
    caller.die()


class AwayStore(Store):
    """Whose storage refuses while it is `away`, or keeps who asks waiting."""

    away = threading.Event()
    keeps_waiting = False

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        self._answer()
        super().write(key, data, durable=durable)

    def names(self, key: str = "") -> list[str]:
        self._answer()
        return super().names(key)

    def read(self, key: str, max_bytes: int | None = None) -> bytes:
        self._answer()
        return super().read(key, max_bytes)

    def _answer(self) -> None:
        while self.away.is_set():
            if not self.keeps_waiting:
                raise StorageError("the storage is away")
            time.sleep(0.05)


@pytest.mark.promise("last-caller")
@pytest.mark.parametrize("keeps_waiting", [False, slow(True)])
def test_a_storage_that_is_away_makes_no_caller_count_as_gone(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, keeps_waiting: bool
) -> None:
    monkeypatch.setattr(AwayStore, "keeps_waiting", keeps_waiting)
    soon = replace(TIMING, linger_s=1.0)
    missed_soon = CoordinationTiming(mailbox_heartbeat_s=0.2, mailbox_standstill_s=1.0)
    job = RunFolder(folder.storage, "run")
    job.store = AwayStore(folder.url)
    # Its heart cannot beat either, where it has to wait.
    caller = Caller(job if keeps_waiting else folder)
    with ThreadPoolExecutor(1) as pool:
        served = serving(transport_of(job, caller.first, soon, missed_soon), pool)
        caller.answered(caller.first)
        AwayStore.away.set()
        # Longer than it waits for somebody to call.
        time.sleep(4)
        AwayStore.away.clear()
        assert not served.done()
        caller.answered(caller.close())
        assert served.result() == EndStatus.FINISHED
    caller.die()
