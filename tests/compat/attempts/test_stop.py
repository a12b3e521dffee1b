"""A training function that is requested to end, or to move, does so after a report and goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.attempts.kinds import SLOW_UPLOAD
from tests.compat.command import Command
from tests.waiting import wait_for
from train_core import open_run, stop_run
from train_core.storage.records.journal import read_segments

# The command is a process of its own.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.leaves]


def by_command(command: Command) -> None:
    stop_run(open_run(command.folder.storage, command.folder.name))


def by_signal(command: Command) -> None:
    assert command.process is not None
    command.process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("stop", [by_command, by_signal])
def test_it_ends_after_a_report_and_goes_on_from_it(
    tmp_path: Path, stop: Callable[[Command], None]
) -> None:
    command = Command(tmp_path)
    # It would take minutes.
    command.start(num_epochs=1000)
    command.wait_for_reports(3)
    stop(command)
    assert command.end() != 0, command.log()
    newest = command.folder.newest()
    assert newest is not None
    assert newest.manifest.stopped_by == "request"
    epochs = newest.step + 3
    command.start(num_epochs=epochs)
    assert command.end() == 0, command.log()[-3000:]
    end = command.folder.newest()
    assert end is not None
    steps = [entry.step for entry in read_segments(command.folder.store, end.manifest.journal)]
    assert steps == list(range(1, epochs + 1))
    assert f"{newest.name}" in {str(one.name) for one in command.folder.checkpoints()}


def test_one_that_does_not_report_is_ended_after_its_grace(tmp_path: Path) -> None:
    command = Command(tmp_path)
    command.start(pause_s=600)
    command.wait_for_reports(1)
    by_command(command)
    assert command.end() != 0
    assert "did not report within grace_s" in command.log()
    newest = command.folder.newest()
    assert newest is not None
    assert newest.step == 1


def journal_of(command: Command) -> list[int]:
    """The steps in the journal of the newest commit."""
    newest = command.folder.newest()
    assert newest is not None
    return [one.step for one in read_segments(command.folder.store, newest.manifest.journal)]


@pytest.mark.promise("sigterm-of-a-function")
def test_a_worker_that_gets_sigterm_ends_the_attempt_after_the_report_under_way(
    tmp_path: Path,
) -> None:
    command = Command(tmp_path, SLOW_UPLOAD, grace_s=60)
    # Ray would end the worker after four seconds, in the middle of its upload.
    command.start(num_epochs=3, upload_s=6, place=str(tmp_path))
    wait_for((tmp_path / "uploading-1").exists, 120, command.log)
    command.rng.choice(command.workers()).send_signal(signal.SIGTERM)
    assert command.end() == 0, command.log()[-3000:]
    assert journal_of(command) == [1, 2, 3]
    reported = command.folder.reported()
    made = [(one.step, one.attempt, one.manifest.stopped_by) for one in reported]
    assert made == [(1, 1, ""), (2, 1, "request"), (3, 2, "")]
    assert "got SIGTERM: the attempt ends after the report under way" in command.log()
    assert "begins again" not in command.log()


def test_a_worker_that_gets_sigterm_and_does_not_report_is_ended_after_its_grace(
    tmp_path: Path,
) -> None:
    command = Command(tmp_path)
    command.start(pause_s=600)
    command.wait_for_reports(1)
    command.rng.choice(command.workers()).send_signal(signal.SIGTERM)
    second = command.wait_for_reports(2, after_attempt=1)
    assert second.attempt == 2
    assert "did not report within grace_s" in command.log()
    by_command(command)
    assert command.end() != 0
    assert command.folder.checkpoints()[0].attempt == 1
