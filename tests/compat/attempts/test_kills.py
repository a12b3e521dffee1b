"""Functions of each kind that are killed at random moments end with every report, once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from tests.compat.attempts.kinds import DEEPSPEED, EPOCHS, KINDS, NUM_WORKERS, PAUSE_S, Kind
from tests.compat.command import Command
from train_core import TrainConfig, fit, open_run, verify_run
from train_core.storage.records.journal import read_segments

# Processes are killed: what they leave is looked at below.
pytestmark = [pytest.mark.slow, pytest.mark.leaves]

Kill = Callable[[Command], None]


def kill_worker(command: Command) -> None:
    command.rng.choice(command.workers()).send_signal(signal.SIGKILL)


def kill_controller(command: Command) -> None:
    (controller,) = command.processes_of("TrainController")
    controller.send_signal(signal.SIGKILL)


def kill_command(command: Command) -> None:
    assert command.process is not None
    left = command.descendants()
    command.process.send_signal(signal.SIGKILL)
    command.process.wait()
    _, alive = psutil.wait_procs(left, 60)
    assert not alive
    command.start()


CASES = [
    *((kill, after) for kill in (kill_worker, kill_controller) for after in [(1, 3), (2, 5), (4,)]),
    # A new command takes longest to come to its first report.
    *((kill_command, (after,)) for after in (1, 2, 3, 4, 5)),
]
"""Five moments each: so many reports are there at the earliest, and then a random while passes."""


def name_of_case(value: Kill | Sequence[int]) -> str:
    return "-".join(map(str, value)) if isinstance(value, Sequence) else value.__name__


@pytest.mark.promise("own-training-function")
@pytest.mark.parametrize(("kill", "after_reports"), CASES, ids=name_of_case)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_report_is_there_once(
    tmp_path: Path, kind: Kind, kill: Kill, after_reports: Sequence[int]
) -> None:
    if kind.library:
        pytest.importorskip(kind.library)
    command = Command(tmp_path, kind)
    seen = run_and_kill(command, kill, after_reports)
    check_that_each_report_is_there_once(command)
    check_that_none_was_lost(command, seen)


@pytest.mark.timeout(300)
def test_shards_of_all_ranks_are_resumed_after_a_rank_was_killed(tmp_path: Path) -> None:
    if not find_spec("deepspeed"):
        pytest.skip("deepspeed is not installed")
    command = Command(tmp_path, DEEPSPEED)
    seen = run_and_kill(command, kill_worker, (4,))
    check_that_each_report_is_there_once(command)
    check_that_none_was_lost(command, seen)
    for one in command.folder.checkpoints():
        names = {Path(file.name).name for file in one.manifest.files}
        shards = {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(NUM_WORKERS)}
        assert one.manifest.is_function_end or shards <= names
    undisturbed = TrainConfig(
        train_fn=DEEPSPEED.name,
        train_loop_config={DEEPSPEED.num_epochs: EPOCHS},
        num_workers=NUM_WORKERS,
    )
    fit(undisturbed, storage=command.folder.storage, run="undisturbed")
    runs = [open_run(command.folder.storage, name) for name in (command.folder.name, "undisturbed")]
    disturbed, expected = (run.metrics["loss"].tolist() for run in runs)
    assert disturbed == expected


def run_and_kill(
    command: Command, kill: Kill, after_reports: Sequence[int]
) -> list[dict[str, float]]:
    """Run it to its end with these kills: what was committed before each, with its metric.

    A report has returned only if its checkpoint was committed.
    """
    seen: list[dict[str, float]] = []
    attempt = 0
    command.start()
    try:
        for number in after_reports:
            # The kill before has ended its attempt: there is a report of a later one.
            attempt = command.wait_for_reports(number, after_attempt=attempt).attempt
            assert len(command.workers()) <= NUM_WORKERS
            time.sleep(command.rng.uniform(0, 3 * PAUSE_S))
            checkpoints = command.folder.checkpoints()
            seen.append(
                {str(one.name): one.manifest.metrics[command.kind.metric] for one in checkpoints}
            )
            kill(command)
        assert command.end() == 0, command.log()[-3000:]
    finally:
        if command.process and command.process.poll() is None:
            command.process.kill()
            command.process.wait()
    return seen


def check_that_each_report_is_there_once(command: Command) -> None:
    """In the run folder, in the journal and in MLflow."""
    folder, metric = command.folder, command.kind.metric
    steps = list(range(1, EPOCHS + 1))
    newest = folder.newest()
    assert newest is not None
    assert newest.manifest.is_function_end
    journal = list(read_segments(folder.store, newest.manifest.journal))
    assert [entry.step for entry in journal] == steps
    first = command.kind.first_epoch
    assert [entry.metrics["epoch"] for entry in journal] == list(range(first, first + EPOCHS))
    reported = [one for one in folder.checkpoints() if not one.manifest.is_function_end]
    values = [entry.metrics[metric] for entry in journal]
    assert [(one.step, one.manifest.metrics[metric]) for one in reported] == list(
        zip(steps, values, strict=True)
    )
    assert not [one for one in verify_run(folder) if one.faults]
    client = MlflowClient(command.tracking_uri)
    (experiment,) = client.search_experiments(filter_string="name = 'evertrain'")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`evertrain.stage` = 'pipeline'")
    history = client.get_metric_history(run.info.run_id, metric)
    assert [(point.step, point.value) for point in history] == list(zip(steps, values, strict=True))


def check_that_none_was_lost(command: Command, seen: Sequence[dict[str, float]]) -> None:
    """What was there before a kill is there in the end, and the next attempt began after it."""
    checkpoints = command.folder.checkpoints()
    metrics = {str(one.name): one.manifest.metrics.get(command.kind.metric) for one in checkpoints}
    for before in seen:
        assert before.items() <= metrics.items()
        newest = max(
            (one for one in checkpoints if str(one.name) in before), key=lambda one: one.step
        )
        assert newest.step < min(one.step for one in checkpoints if one.attempt > newest.attempt)
