"""A pipeline that is told to stop saves, ends in order, and goes on from there as if it was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.chaos.pipeline import House, outcome
from tests.flows.conftest import RETRAIN, Evertrain
from tests.flows.held import HOLD_AFTER_STEP, HOLD_UNTIL
from tests.flows.mlflow_side import shown_in_mlflow
from tests.flows.prefect_side import shown_in_prefect
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.timeout(300)

HELD_AFTER = 31


def wait_for(what: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def held(
    run: str, home: Path, environment: dict[str, str], *more: str
) -> Iterator[tuple[subprocess.Popen[str], RunFolder, Path]]:
    """A pipeline that stands still after a step, and the file whose appearance lets it go on."""
    folder, go_on = RunFolder(str(home / ".evertrain/runs"), run), home / f"{run}-go-on"
    with subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *RETRAIN, "--run", run, "--num-workers", "2", *more],
        cwd=home,
        env={**environment, HOLD_AFTER_STEP: str(HELD_AFTER), HOLD_UNTIL: str(go_on)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            # Two more steps are done by then: the last is seen in the next one's word.
            wait_for(lambda: (folder.live() or {}).get("step") == HELD_AFTER - 1, process)
            yield process, folder, go_on
        finally:
            process.kill()


def log_of(home: Path, run: str) -> str:
    return (home / f".evertrain/logs/{run}.log").read_text()


@pytest.mark.promise("stop")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_gets_a_last_checkpoint_and_an_orderly_end(
    number: signal.Signals,
    undisturbed: str,
    evertrain: Evertrain,
    environment: dict[str, str],
    home: Path,
) -> None:
    run = f"stopped-{number.name}"
    with held(run, home, environment) as (process, folder, go_on):
        started = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, number)
        wait_for(lambda: "asked to stop: " in log_of(home, run), process)
        go_on.touch()
        _, said = process.communicate(timeout=60)
    last = folder.checkpoints()[-1].manifest
    assert HELD_AFTER < last.step < 60
    assert last.stopped_by == "request"
    assert process.returncode == 130
    assert f"is saved up to step {last.step}. `evertrain runs resume {run}` goes on" in said
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    shown = shown_in_mlflow(home, folder.url)
    assert {name: stage["status"] for name, stage in shown.items()} == {
        "pipeline": "KILLED",
        "train": "KILLED",
    }
    assert shown_in_prefect(home, run) == ["CANCELLED"]

    done = evertrain("runs", "resume", run)

    assert done.returncode == 0, done.stderr
    house = House(home, environment, folder.storage)
    assert outcome(house, run) == outcome(house, "undisturbed")
    newest = folder.checkpoints()[-1]
    assert (newest.manifest.step, newest.name.attempt) == (60, 2)


@pytest.mark.slow
def test_who_does_not_save_within_its_grace_is_ended(
    environment: dict[str, str], home: Path
) -> None:
    with held("graceless", home, environment, "--grace-s", "2") as (process, folder, _):
        wait_for(lambda: folder.checkpoints()[-1:], process)
        newest = folder.checkpoints()[-1].name
        os.kill(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert folder.checkpoints()[-1].name == newest
    assert f"is saved up to step {newest.step}" in said
    assert (
        "did not save within grace_s (2 s)" in (home / ".evertrain/logs/graceless.log").read_text()
    )


@pytest.mark.slow
def test_a_second_signal_ends_everything_at_once(environment: dict[str, str], home: Path) -> None:
    with held("hasty", home, environment) as (process, folder, _):
        wait_for(lambda: folder.checkpoints()[-1:], process)
        started = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        wait_for(lambda: "asked to stop: " in log_of(home, "hasty"), process)
        begin = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
        # The training, which is held, would have had its grace of 20 s.
        assert time.monotonic() - begin < 15
    assert process.returncode == 130
    _, alive = psutil.wait_procs(started, timeout=70)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_stop_asks_the_training_wherever_it_is(
    evertrain: Evertrain, environment: dict[str, str], home: Path
) -> None:
    with held("asked", home, environment) as (process, folder, go_on):
        done = evertrain("runs", "stop", "asked")
        assert (done.returncode, done.stderr) == (0, "")
        wait_for(lambda: "asked to stop: evertrain runs stop" in log_of(home, "asked"), process)
        go_on.touch()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"is saved up to step {folder.checkpoints()[-1].manifest.step}" in said
    assert shown_in_mlflow(home, folder.url)["pipeline"]["status"] == "KILLED"
    assert shown_in_prefect(home, "asked") == ["CANCELLED"]
    again = evertrain("runs", "stop", "asked")
    assert again.returncode == 2
    assert "nobody drives run 'asked'" in again.stderr
