"""What follows the end of an attempt; the attempts train in this very process, and are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rank import alone
from tests.rank.digests import digest_of_training
from tests.storage.doubles.faulty_store import LOOK, FaultyStore
from tests.storage.test_committed import commit_newer
from tests.waiting import wait_for
from train_core import TrainConfig
from train_core.driver.attempts.supervisor import Attempt, AttemptOutcome, Supervisor
from train_core.errors import ConfigError, FencedError, GaveUpError, StoppedError, UserCodeError
from train_core.policy.restarts import Ended, RestartRules
from train_core.storage.cleanup.orphans import delete_uncommitted_checkpoints
from train_core.storage.coordination import lease
from train_core.storage.coordination.stop_request import StopRequest, ask_to_stop
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt
from train_core.timing import Timing

ASKED: dict[str, Any] = {
    "workload": "tests.rank.tiny:Tiny",
    "batch_size": 32,
    "eval_batch_size": 16,
    "epochs": 2,
    "checkpoint_every_steps": 2,
    "checkpoint_backpressure": "wait",
    "keep_last": 99,
}
STEPS = 10


LOST = AttemptOutcome(Ended.LOST, ConnectionError("rank 0 died"))
DEATH, BUG = ConnectionError("rank 0 died"), UserCodeError("train", "KeyError: 'x'", "a traceback")


class Ends:
    """A launcher whose first attempts end so; the next one trains to the end."""

    def __init__(self, *outcomes: AttemptOutcome) -> None:
        self.outcomes = list(outcomes)
        self.attempts: list[int] = []

    def run(self, attempt: Attempt) -> AttemptOutcome:
        self.attempts.append(attempt.number)
        if self.outcomes:
            return self.outcomes.pop(0)
        alone.run(attempt.folder, attempt.number, **attempt.config.model_dump())
        return AttemptOutcome()


class LosesAttempts(Ends):
    """A launcher whose first attempts are lost: each has trained up to one of these steps."""

    def __init__(self, *lost_at: int) -> None:
        super().__init__(
            *(
                replace(LOST, error=ConnectionError(f"rank 1 died in attempt {number}"))
                for number in range(1, len(lost_at) + 1)
            )
        )
        self.lost_at = list(lost_at)
        self.has_begun = threading.Event()
        """Set in the second attempt."""

    def run(self, attempt: Attempt) -> AttemptOutcome:
        if attempt.number == 2:
            self.has_begun.set()
        if self.lost_at and (step := self.lost_at.pop(0)):
            asked = attempt.config.model_dump() | {"max_steps": step}
            alone.run(attempt.folder, attempt.number, **asked)
        return super().run(attempt)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(str(tmp_path), "run")
    alone.create(folder, TrainConfig(**ASKED))
    return folder


@pytest.fixture
def supervised(folder: RunFolder) -> Iterator[Supervisor]:
    held = begin_attempt(folder)
    yield Supervisor(folder, held, paused(0.01))
    held.release()


def paused(pause_s: float) -> Timing:
    return Timing(restarts=RestartRules(pause_s=pause_s), stop_poll_s=0.05)


@pytest.mark.promise("three-restarts")
def test_a_run_fails_when_three_restarts_in_a_row_brought_no_new_checkpoint(
    supervised: Supervisor, folder: RunFolder
) -> None:
    launcher = LosesAttempts(4, *[0] * 9)
    with pytest.raises(GaveUpError, match=r"gave up after 4 tries .*rank 1 died in attempt 4"):
        supervised.train(TrainConfig(**ASKED), launcher)
    # The first brought one; three restarts after it did not.
    assert len(launcher.attempts) == 1 + RestartRules().max_restarts == 4
    assert [one.name.step for one in folder.checkpoints()] == [2, 4]


@pytest.mark.promise("three-restarts", "worker-dies")
def test_a_new_checkpoint_makes_the_count_begin_anew(
    supervised: Supervisor, folder: RunFolder, tmp_path: Path
) -> None:
    undisturbed = RunFolder(str(tmp_path / "undisturbed"), "run")
    alone.run(undisturbed, **ASKED)
    launcher = LosesAttempts(2, 0, 4, 0, 0, 6, 8)
    assert supervised.train(TrainConfig(**ASKED), launcher).manifest.step == STEPS
    assert launcher.attempts == list(range(1, 9))
    assert digest_of_training(folder) == digest_of_training(undisturbed)


@pytest.mark.promise("three-restarts")
def test_a_step_that_survivors_keep_makes_the_count_begin_anew(supervised: Supervisor) -> None:
    kept = (1, 2, 3, 3, 3, 4, 5, 5, 4, 5, 6)
    launcher = Ends(*(replace(LOST, has_survivors=True, kept_step=step) for step in kept))
    with pytest.raises(GaveUpError, match="gave up after 4 tries without progress"):
        supervised.train(TrainConfig(**ASKED), launcher)
    assert [one.kept_step for one in launcher.outcomes] == [6]


class HoldsAllButTheLease(Store):
    """Answers nothing, but to who takes the next number of the lease."""

    goes_on = threading.Event()
    is_holding = False

    def _run(self, action: str, key: str, operation: Callable[[float], Any], **more: Any) -> Any:
        if self.is_holding and not (action == "create" and "lease/0002.json" in key):
            assert self.goes_on.wait(60), (action, key)
        return super()._run(action, key, operation, **more)


class WaitsBetween(LosesAttempts):
    """Its processes wait for a second attempt, and for what they are told of the first one.

    `between` is called before the driver hears that the first one is lost, `within` as the second
    one begins, which trains on if it can.
    """

    def __init__(
        self, between: Callable[[Attempt], object], within: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(4)
        self.between, self.within = between, within
        self.was_known = True
        self.earlier: Commit | BaseException | None = None

    def run(self, attempt: Attempt) -> AttemptOutcome:
        if attempt.number == 1:
            outcome = super().run(attempt)
            self.between(attempt)
            return replace(outcome, has_survivors=True, kept_step=5)
        self.was_known = attempt.earlier.done()
        self.within()
        if error := attempt.earlier.exception(60):
            self.earlier, self.outcomes = error, [replace(LOST, has_survivors=True, kept_step=5)]
        else:
            self.earlier = attempt.earlier.result()
        return super().run(attempt)


def test_processes_that_wait_wait_for_one_request_only(
    supervised: Supervisor, folder: RunFolder
) -> None:
    folder.store = store = HoldsAllButTheLease(folder.url)
    supervised._lease.store = store
    launcher = WaitsBetween(lambda _: setattr(store, "is_holding", True), store.goes_on.set)
    supervised.train(TrainConfig(**ASKED), launcher)
    assert not launcher.was_known
    assert isinstance(launcher.earlier, Commit)
    assert launcher.earlier.step == 4
    assert lease.is_over(folder.store, 1)


@pytest.mark.parametrize(
    ("happens", "error", "words"),
    [
        (lambda attempt: commit_newer(attempt.folder, 6), ConfigError, "has format 2"),
        (
            lambda attempt: ask_to_stop(attempt.folder.store, 1, "somebody elsewhere"),
            StoppedError,
            "saved up to step 4",
        ),
    ],
    ids=["a newer evertrain commits", "somebody asks to stop"],
)
def test_what_happens_between_two_attempts_ends_the_second_one(
    supervised: Supervisor,
    happens: Callable[[Attempt], object],
    error: type[Exception],
    words: str,
) -> None:
    launcher = WaitsBetween(happens)
    with pytest.raises(error, match=words):
        supervised.train(TrainConfig(**ASKED), launcher)
    assert launcher.attempts == [1, 2]
    assert isinstance(launcher.earlier, error)


class LeavesFiles(LosesAttempts):
    """A launcher whose attempts leave a file without a commit, and processes that wait."""

    def __init__(self, *lost_at: int) -> None:
        super().__init__(*lost_at)
        self.found: list[int] = []

    def run(self, attempt: Attempt) -> AttemptOutcome:
        store = attempt.folder.store
        self.found.append(sum(store.exists(key(number)) for number in range(1, attempt.number)))
        store.write(key(attempt.number), b"half of a checkpoint")
        return replace(super().run(attempt), has_survivors=True)


def key(attempt: int) -> str:
    return f"checkpoints/step-00000003-a{attempt:04}/model.safetensors"


def test_processes_that_wait_do_not_wait_for_what_is_deleted(
    supervised: Supervisor, folder: RunFolder
) -> None:
    launcher = LeavesFiles(2, 4)
    supervised.train(TrainConfig(**ASKED), launcher)
    assert launcher.found == [0, 1, 2]
    assert [folder.store.exists(key(number)) for number in (1, 2)] == [False, False]


class TrainsUntilDeleted(LeavesFiles):
    """Its last attempt trains until what the others left is deleted; one of its own files stays."""

    def run(self, attempt: Attempt) -> AttemptOutcome:
        if not self.lost_at:
            store, others = attempt.folder.store, [key(number) for number in range(1, 3)]
            store.write(key(attempt.number), b"half of a checkpoint")
            wait_for(lambda: not any(map(store.exists, others)), 30)
            assert store.exists(key(attempt.number))
            store.delete(key(attempt.number))
        return super().run(attempt)


def test_what_a_broken_attempt_left_is_deleted_while_the_next_one_trains(folder: RunFolder) -> None:
    held = begin_attempt(folder)
    timing = replace(paused(0.01), orphans_after_s=0.1)
    launcher = TrainsUntilDeleted(2, 4)
    try:
        Supervisor(folder, held, timing).train(TrainConfig(**ASKED), launcher)
    finally:
        held.release()
    assert launcher.attempts == [1, 2, 3]
    assert [one.name.step for one in folder.checkpoints()][-1] == STEPS


def test_what_an_attempt_that_trains_may_commit_is_deleted_by_nobody(folder: RunFolder) -> None:
    store = folder.store
    for number in (1, 2):
        held = begin_attempt(folder)
        store.write(key(number), b"half of a checkpoint")
        if number == 1:
            held.release()
    with pytest.raises(FencedError):
        delete_uncommitted_checkpoints(RunWriter(folder, 1))
    assert [store.exists(key(number)) for number in (1, 2)] == [True, True]
    delete_uncommitted_checkpoints(RunWriter(folder, 2))
    assert [store.exists(key(number)) for number in (1, 2)] == [False, True]
    held.release()


def stopped(supervised: Supervisor, launcher: Any, stop: Callable[[], object], **asked: Any) -> str:
    """What is said of a training that is told to end in its first attempt, and does."""
    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(supervised.train, TrainConfig(**ASKED, **asked), launcher)
        assert launcher.has_begun.wait(60)
        stop()
        with pytest.raises(StoppedError) as ended:
            training.result(60)
    return str(ended.value)


class StandsStill:
    """A launcher whose attempt ends when it is let go, which is too late."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def run(self, attempt: Attempt) -> AttemptOutcome:
        self.has_begun.set()
        assert self.may_end.wait(60)
        return AttemptOutcome(Ended.FAILED, StoppedError(attempt.folder.name, 0))


@pytest.mark.promise("grace")
def test_who_does_not_save_in_its_grace_is_not_waited_for(
    supervised: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = StandsStill()
    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(supervised.train, TrainConfig(**ASKED, grace_s=0.2), launcher)
        assert launcher.has_begun.wait(60)
        supervised.stop()
        assert not training.done()
        launcher.may_end.set()
        with pytest.raises(StoppedError):
            training.result(60)
    assert "did not end within grace_s (0.2 s)" in caplog.text


class Obeys:
    """A launcher whose ranks end when a request comes, saved or not.

    `refusals` is how often a request cannot be sent to them.
    """

    def __init__(self, outcome: AttemptOutcome, refusals: int = 0) -> None:
        self.outcome = outcome
        self.refusals = refusals
        self.has_begun = threading.Event()
        self.received: list[StopRequest] = []

    def run(self, attempt: Attempt) -> AttemptOutcome:
        has_come = threading.Event()

        def receive(request: StopRequest) -> None:
            if self.refusals:
                self.refusals -= 1
                raise ConnectionError("the rendezvous store does not answer")
            self.received.append(request)
            has_come.set()

        attempt.requests.send_by(receive)
        self.has_begun.set()
        assert has_come.wait(60)
        return self.outcome


@pytest.mark.promise("grace")
def test_ranks_that_could_not_save_have_stopped_at_their_last_commit(
    supervised: Supervisor, folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = Obeys(AttemptOutcome(given_up_at=4))
    assert "saved up to step 4" in stopped(supervised, launcher, supervised.stop)
    assert [request.goes_on for request in launcher.received] == [False]
    assert "the storage did not take a last checkpoint within grace_s" in caplog.text
    assert "did not end within grace_s" not in caplog.text


class WaitsForRoom:
    """A launcher whose ranks have not started when the request to end comes."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()

    def run(self, attempt: Attempt) -> AttemptOutcome:
        has_come = threading.Event()
        attempt.requests.send_by(lambda _: has_come.set())
        self.has_begun.set()
        assert has_come.wait(60)
        try:
            attempt.check_stop()
        except StoppedError as error:
            return AttemptOutcome(Ended.FAILED, error)
        raise AssertionError


@pytest.mark.parametrize(
    "new_launcher",
    [WaitsForRoom, lambda: Obeys(AttemptOutcome()), lambda: Obeys(LOST)],
    ids=["before the ranks start", "after they saved", "after one died"],
)
def test_an_attempt_that_is_asked_to_end_does_so_although_the_storage_is_away(
    supervised: Supervisor,
    folder: RunFolder,
    tmp_path: Path,
    new_launcher: Callable[[], WaitsForRoom | Obeys],
) -> None:
    launcher = new_launcher()
    folder.store = store = FaultyStore(folder.url, tmp_path / "notes")
    stopped(supervised, launcher, lambda: (take_away(store), supervised.stop()))


def test_no_attempt_begins_after_a_stop_although_the_storage_is_away(
    supervised: Supervisor, folder: RunFolder, tmp_path: Path
) -> None:
    folder.store = store = FaultyStore(folder.url, tmp_path / "notes")
    first = supervised.begin_attempt()
    take_away(store)
    supervised.stop()
    with pytest.raises(StoppedError):
        supervised.begin_attempt()
    store.work_again()
    assert lease.newest_attempt(folder.store) == first


def take_away(store: FaultyStore) -> None:
    for kind in ("", LOOK):
        store.fail_at(1, kind=kind, times=None)


@pytest.mark.promise("runs-stop")
def test_a_request_in_the_run_folder_is_brought_to_the_ranks(
    supervised: Supervisor, folder: RunFolder
) -> None:
    launcher = Obeys(LOST)
    stopped(supervised, launcher, lambda: ask_to_stop(folder.store, 1, "somebody elsewhere"))
    assert launcher.received == [StopRequest(reason="somebody elsewhere")]


def test_a_request_that_could_not_be_sent_is_sent_again(
    supervised: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = Obeys(LOST, refusals=2)
    stopped(supervised, launcher, supervised.stop, grace_s=10)
    assert launcher.received == [StopRequest(reason="its program ends")]
    assert "the ranks cannot be asked to stop" in caplog.text
    assert "did not end within grace_s" not in caplog.text


def test_who_is_told_to_end_between_two_attempts_begins_no_other(folder: RunFolder) -> None:
    # The third attempt would begin after an hour.
    held = begin_attempt(folder)
    supervised = Supervisor(folder, held, paused(3600))
    launcher = LosesAttempts(0, 0, 0)
    stopped(supervised, launcher, supervised.stop)
    held.release()
    assert launcher.attempts == [1, 2]


def test_what_the_user_has_to_mend_ends_the_training_at_once(supervised: Supervisor) -> None:
    launcher = Ends(AttemptOutcome(Ended.FAILED, BUG))
    with pytest.raises(UserCodeError, match="KeyError"):
        supervised.train(TrainConfig(**ASKED), launcher)
    assert launcher.attempts == [1]


def test_a_training_that_is_done_launches_nothing(
    supervised: Supervisor, folder: RunFolder
) -> None:
    alone.run(folder, **ASKED)
    launcher = Ends(AttemptOutcome(Ended.FAILED, BUG))
    assert supervised.train(TrainConfig(**ASKED), launcher).manifest.step == STEPS
    assert launcher.attempts == []


class Moves(Ends):
    """A launcher whose first attempts end as they were asked to, without a new checkpoint."""

    def run(self, attempt: Attempt) -> AttemptOutcome:
        if self.outcomes:
            attempt.requests.ask_to_move("node 1 is being drained")
        return super().run(attempt)


def test_an_attempt_that_ends_for_another_one_elsewhere_is_no_death(supervised: Supervisor) -> None:
    launcher = Moves(*[AttemptOutcome(Ended.AS_ASKED)] * 5)
    assert supervised.train(TrainConfig(**ASKED), launcher).manifest.step == STEPS
    assert launcher.attempts == [1, 2, 3, 4, 5, 6]


class Measures(Ends):
    """A launcher whose attempts measure what is not saved."""

    def __init__(self, *outcomes: AttemptOutcome) -> None:
        super().__init__(*outcomes)
        self.kept: list[tuple[int, int, str]] = []
        """The attempt that has measured, the one that it is kept for, and why."""

    def run(self, attempt: Attempt) -> AttemptOutcome:
        def keep(number: int, why: str) -> None:
            self.kept.append((attempt.number, number, why))

        outcome = super().run(attempt)
        return replace(outcome, keep_metrics=keep) if outcome.error else outcome


@pytest.mark.parametrize(
    ("errors", "raised", "kept"),
    [
        ([DEATH, BUG], UserCodeError, [(2, 2, "failure")]),
        ([DEATH] * 4, GaveUpError, [(4, 4, "failure")]),
        ([StoppedError("run", 0)], StoppedError, [(1, 1, "request")]),
        # Another attempt has measured it again.
        ([DEATH], None, []),
    ],
    ids=["a bug", "deaths", "a stop", "a death"],
)
def test_what_no_checkpoint_covers_is_kept_if_no_other_attempt_measures_it(
    supervised: Supervisor,
    errors: list[Exception],
    raised: type[Exception] | None,
    kept: list[tuple[int, int, str]],
) -> None:
    launcher = Measures(
        *(AttemptOutcome(Ended.LOST if one is DEATH else Ended.FAILED, one) for one in errors)
    )
    with pytest.raises(raised) if raised else nullcontext():
        supervised.train(TrainConfig(**ASKED), launcher)
    assert launcher.kept == kept
