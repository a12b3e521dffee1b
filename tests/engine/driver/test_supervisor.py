"""What follows the end of an attempt; the attempts train in this very process, and are lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine import alone
from tests.engine.digests import digest_of_training
from train_core import TrainConfig
from train_core.engine.driver import supervisor
from train_core.engine.driver.supervisor import MAX_RESTARTS, Attempt, Outcome, Supervisor
from train_core.errors import GaveUpError, UserCodeError
from train_core.storage.run_folder import RunFolder

ASKED: dict[str, Any] = {
    "workload": "tests.engine.tiny:Tiny",
    "batch_size": 32,
    "eval_batch_size": 16,
    "epochs": 2,
    "checkpoint_every_steps": 2,
    "checkpoint_backpressure": "wait",
    "keep_last": 99,
}
STEPS = 10


class LosesAttempts:
    """A launcher whose first attempts are lost: each has trained up to one of these steps."""

    def __init__(self, *lost_at: int) -> None:
        self.lost_at = list(lost_at)
        self.attempts: list[int] = []

    def run(self, attempt: Attempt) -> Outcome:
        self.attempts.append(attempt.number)
        asked = attempt.config.model_dump()
        if not self.lost_at:
            alone.run(attempt.folder, attempt.number, **asked)
            return Outcome()
        if step := self.lost_at.pop(0):
            alone.run(attempt.folder, attempt.number, **asked | {"max_steps": step})
        return Outcome(ConnectionError(f"rank 1 died in attempt {attempt.number}"), is_lost=True)


class Fails:
    """A launcher whose attempts end with an error of the user's."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def run(self, attempt: Attempt) -> Outcome:
        self.attempts.append(attempt.number)
        return Outcome(UserCodeError("train", "rank 0: KeyError: 'x'", "a traceback"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(str(tmp_path), "run")
    alone.create(folder, TrainConfig(**ASKED))
    return folder


@pytest.fixture
def supervised(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr(supervisor, "RESTART_PAUSE_S", 0.01)
    held = folder.begin_attempt()
    yield Supervisor(folder, held)
    held.release()


@pytest.mark.promise("three-restarts")
def test_a_run_fails_when_three_restarts_in_a_row_brought_no_new_checkpoint(
    supervised: Supervisor, folder: RunFolder
) -> None:
    launcher = LosesAttempts(4, *[0] * 9)
    with pytest.raises(GaveUpError, match=r"gave up after 4 tries .*rank 1 died in attempt 4"):
        supervised.train(TrainConfig(**ASKED), launcher)
    # The first brought one; three restarts after it did not.
    assert len(launcher.attempts) == 1 + MAX_RESTARTS == 4
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


def test_what_the_user_has_to_mend_ends_the_training_at_once(
    supervised: Supervisor,
) -> None:
    launcher = Fails()
    with pytest.raises(UserCodeError, match="KeyError"):
        supervised.train(TrainConfig(**ASKED), launcher)
    assert launcher.attempts == [1]


def test_a_training_that_is_done_launches_nothing(
    supervised: Supervisor, folder: RunFolder
) -> None:
    alone.run(folder, **ASKED)
    launcher = Fails()
    assert supervised.train(TrainConfig(**ASKED), launcher).manifest.step == STEPS
    assert launcher.attempts == []
