"""A training function whose processes are killed at random moments ends with every report, once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from tests.compat.command import EPOCHS, PAUSE_S, Command
from train_core import verify_run
from train_core.storage.records.journal import read_segments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_WORKERS = 2


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Processes are killed: what they leave is looked at below."""


def workers_of(command: Command) -> list[psutil.Process]:
    return [one for one in command.descendants() if "RayTrainWorker" in name_of(one)]


def kill_worker(command: Command) -> None:
    command.rng.choice(workers_of(command)).send_signal(signal.SIGKILL)


def kill_controller(command: Command) -> None:
    (controller,) = [one for one in command.descendants() if "TrainController" in name_of(one)]
    controller.send_signal(signal.SIGKILL)


def kill_command(command: Command) -> None:
    assert command.process is not None
    left = command.descendants()
    command.process.send_signal(signal.SIGKILL)
    command.process.wait()
    _, alive = psutil.wait_procs(left, 60)
    assert not alive
    command.start()


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.promise("own-training-function")
@pytest.mark.parametrize("kill", [kill_worker, kill_controller, kill_command])
def test_every_report_is_there_once(tmp_path: Path, kill: Callable[[Command], None]) -> None:
    command = Command(tmp_path)
    command.start()
    try:
        reported: list[str] = []
        for after in (1, 3, 5, 7, 9):
            command.wait_for_reports(after)
            # Those of the attempt before have ended.
            assert len(workers_of(command)) <= NUM_WORKERS
            time.sleep(command.rng.uniform(0, 2 * PAUSE_S))
            reported += [str(one.name) for one in command.folder.checkpoints()]
            kill(command)
        assert command.end() == 0, (tmp_path / "log.txt").read_text()[-3000:]
    finally:
        if command.process and command.process.poll() is None:
            command.process.kill()
            command.process.wait()
    newest = command.folder.newest()
    assert newest is not None
    assert newest.manifest.is_function_end
    found = list(read_segments(command.folder.store, newest.manifest.journal))
    assert [entry.step for entry in found] == list(range(1, EPOCHS + 1))
    assert [entry.metrics["epoch"] for entry in found] == list(range(EPOCHS))
    kept = {str(one.name) for one in command.folder.checkpoints()}
    assert set(reported) <= kept
    assert not [one for one in verify_run(command.folder) if one.faults]
    client = MlflowClient(command.tracking_uri)
    (experiment,) = client.search_experiments(filter_string="name = 'evertrain'")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`evertrain.stage` = 'pipeline'")
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in history] == [entry.step for entry in found]
    assert [point.value for point in history] == [entry.metrics["loss"] for entry in found]
