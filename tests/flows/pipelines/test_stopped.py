"""A pipeline that is stopped saves, ends in order, and is continued to the same end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests import commands, waiting
from tests.chaos.pipeline import House, outcome, remaining, unfinished
from tests.chaos.standing import HOLD, NOTES
from tests.flows.conftest import RETRAIN, Evertrain
from tests.flows.mlflow_side import at_home, runs_in, shown_at
from tests.flows.prefect_side import shown_in_prefect
from train_core.storage.records.manifest import CheckpointManifest
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.timeout(600)

HELD_AFTER = 31
"""The step of the stage `mid-epoch`, as tests/chaos/held.py has it."""


def wait_for(what: Callable[[], object], process: subprocess.Popen[str]) -> None:
    waiting.wait_for(what, 300, lambda: str(process.communicate(timeout=1)), ended=process.poll)


@contextmanager
def held(
    run: str, home: Path, environment: dict[str, str], *more: str, at: str = "mid-epoch"
) -> Iterator[tuple[subprocess.Popen[str], RunFolder, Path]]:
    """A pipeline that stands still at a stage, and the file whose appearance lets it go on."""
    folder, notes = RunFolder(str(home / ".evertrain/runs"), run), home / f"{run}-{at}"
    notes.mkdir()
    with subprocess.Popen(
        [*commands.EVERTRAIN, *RETRAIN, "--run", run, "--num-workers", "1", *more],
        cwd=home,
        env={**environment, HOLD: f"{at}@0", NOTES: str(notes)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_for((notes / "held").exists, process)
            yield process, folder, notes / "go-on"
        finally:
            process.kill()


def log_of(home: Path, run: str) -> str:
    log = home / f".evertrain/logs/{run}.log"
    # The command makes it with its first line, which a run that is held may not have told yet.
    return log.read_text() if log.exists() else ""


@dataclass(frozen=True)
class Stopped:
    """The outcome of a pipeline that was held, and stopped by a signal."""

    run: str
    folder: RunFolder
    code: int
    stderr: str
    last: CheckpointManifest
    """Of the newest checkpoint, before the run went on."""
    left: list[psutil.Process]
    """Processes that it had started and that did not end with it."""
    in_mlflow: dict[str, str]
    """The status of each stage."""
    in_prefect: list[str]
    state: str
    """What `evertrain runs status` says."""


@pytest.fixture(
    scope="module", params=[signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def stopped(
    request: pytest.FixtureRequest, evertrain: Evertrain, environment: dict[str, str], home: Path
) -> Stopped:
    number: signal.Signals = request.param
    run = f"stopped-{number.name}"
    with held(run, home, environment) as (process, folder, go_on):
        started = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, number)
        wait_for(lambda: "asked to stop: " in log_of(home, run), process)
        go_on.touch()
        _, stderr = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(started, timeout=10)
    left = [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    shown = shown_at(at_home(home), folder.url)
    return Stopped(
        run,
        folder,
        process.returncode,
        stderr,
        folder.checkpoints()[-1].manifest,
        left,
        in_mlflow={name: stage["status"] for name, stage in shown.items()},
        in_prefect=shown_in_prefect(home, run),
        state=json.loads(evertrain("runs", "status", run, "--json").stdout)["state"],
    )


@pytest.mark.promise("stop")
def test_a_signal_gets_a_last_checkpoint_and_an_orderly_end(stopped: Stopped) -> None:
    assert HELD_AFTER < stopped.last.step < 60
    assert stopped.last.stopped_by == "request"
    assert stopped.code == 130
    goes_on = f"is saved up to step {stopped.last.step}. `evertrain runs resume {stopped.run}`"
    assert f"{goes_on} goes on" in stopped.stderr
    assert not stopped.left
    assert stopped.in_mlflow == {"pipeline": "KILLED"}
    assert stopped.in_prefect == ["CANCELLED"]
    assert stopped.state == "interrupted"


@pytest.mark.promise("stop", "exact-pipeline")
@pytest.mark.slow
def test_a_run_that_was_stopped_and_then_killed_goes_on_to_the_same_end(
    stopped: Stopped,
    undisturbed: str,
    evertrain: Evertrain,
    environment: dict[str, str],
    home: Path,
) -> None:
    # A worker that went on would end the training before its driver has seen who died.
    short = ("--grace-s", "2")
    with held(stopped.run, home, environment, *short, at="step 45") as (process, folder, _):
        belongings = set(psutil.Process(process.pid).children(recursive=True))
        process.kill()
    left = remaining(belongings)
    done = evertrain("runs", "resume", stopped.run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"continuing run {stopped.run}")
    house = House(home, environment, folder.storage)
    assert outcome(house, stopped.run) == outcome(house, "undisturbed")
    assert left + unfinished(folder) == []
    newest = folder.checkpoints()[-1]
    assert (newest.manifest.step, newest.name.attempt) == (60, 3)
    # The one that was killed is no longer said to run.
    ended = shown_in_prefect(home, stopped.run)
    assert (ended[0], ended[-1], len(ended)) == ("CANCELLED", "COMPLETED", 3)
    assert "RUNNING" not in ended


@pytest.mark.promise("runs-delete")
def test_a_deleted_run_is_gone_from_mlflow_too(
    stopped: Stopped, undisturbed: str, evertrain: Evertrain, home: Path
) -> None:
    # The last one that has the run.
    done = evertrain("runs", "delete", stopped.run, "--yes")
    assert done.returncode == 0, done.stderr
    assert not Path(stopped.folder.url).exists()
    assert runs_in(at_home(home), stopped.folder.url) == []
    assert runs_in(at_home(home), f"{home}/.evertrain/runs/undisturbed")


@pytest.mark.promise("grace")
@pytest.mark.slow
def test_who_does_not_save_within_its_grace_is_ended(
    environment: dict[str, str], home: Path
) -> None:
    with held("graceless", home, environment, "--grace-s", "2") as (process, folder, _):
        wait_for(lambda: folder.checkpoints()[-1:], process)
        newest = folder.checkpoints()[-1].name
        os.kill(process.pid, signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert folder.checkpoints()[-1].name == newest
    assert f"is saved up to step {newest.step}" in stderr
    assert (
        "did not end within grace_s (2 s)" in (home / ".evertrain/logs/graceless.log").read_text()
    )


@pytest.mark.promise("second-signal")
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


@pytest.mark.promise("runs-stop")
@pytest.mark.slow
def test_stop_asks_the_training_wherever_it_is(
    evertrain: Evertrain, environment: dict[str, str], home: Path
) -> None:
    with held("asked", home, environment) as (process, folder, go_on):
        done = evertrain("runs", "stop", "asked")
        assert (done.returncode, done.stderr) == (0, "")
        wait_for(lambda: "asked to stop: evertrain runs stop" in log_of(home, "asked"), process)
        go_on.touch()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"is saved up to step {folder.checkpoints()[-1].manifest.step}" in stderr
    assert shown_at(at_home(home), folder.url)["pipeline"]["status"] == "KILLED"
    assert shown_in_prefect(home, "asked") == ["CANCELLED"]
    again = evertrain("runs", "stop", "asked")
    assert again.returncode == 2
    assert "no process drives run 'asked'" in again.stderr
