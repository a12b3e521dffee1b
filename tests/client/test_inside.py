"""Code that a driver, a worker or an import runs starts no run: one line says so, and where."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import commands
from train_core import fit
from train_core.client.driver_handle import Driver
from train_core.client.verify_resume import VerifyResumeRequest, verify_resume
from train_core.config import TrainConfig
from train_core.errors import RunBusyError, StageError, WorkloadError
from train_core.inside import mark_this_process, users_code_in_command
from train_core.loading import load_workload
from train_core.requests import DriverRequest

SCRIPT = """\
from tests.rank.tiny import Tiny as Base
from train_core import TrainConfig, fit


class Tiny(Base):
    pass


fit(
    TrainConfig(workload="script:Tiny", gpus_per_worker=0),
    storage="runs",
    run="run",
    on_log=None,
)
"""
REMEDY = 'put what starts a run under `if __name__ == "__main__":`'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script without a main guard, in a folder of its own."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return file


def in_folder(script: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """The command in the script's folder, marked so that what it leaves is found."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([str(script.parent), root, os.environ.get("PYTHONPATH", "")])
    return commands.run(
        [sys.executable, *command],
        cwd=script.parent,
        env=os.environ | {"PYTHONPATH": path, "LEFT_BY": str(script)},
        timeout=120,
    )


def left_by(script: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get("LEFT_BY") == str(script):
                yield process
        except psutil.Error:
            continue


@pytest.mark.promise("no-driver-inside")
@pytest.mark.slow
def test_a_script_without_a_main_guard_ends_with_a_line_and_leaves_nothing_running(
    script: Path,
) -> None:
    done = in_folder(script, str(script))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"{script}:9 starts a run as it is imported, here by evertrain's driver" in last
    assert REMEDY in last
    psutil.wait_procs(list(left_by(script)), timeout=10)
    assert list(left_by(script)) == []
    assert not (script.parent / "runs").exists()


@pytest.mark.slow
def test_the_command_ends_with_the_line_too(script: Path) -> None:
    command = ("-m", "evertrain_flows.cli", "retrain", "--workload", "script:Tiny")
    done = in_folder(script, *command, "--storage", "runs", "--gpus-per-worker", "0")
    assert done.returncode == 2
    assert f"{script}:9 starts a run as it is imported" in " ".join(done.stderr.split())
    psutil.wait_procs(list(left_by(script)), timeout=10)
    assert list(left_by(script)) == []


@pytest.mark.promise("no-driver-inside")
def test_whatever_imports_the_workload_refuses_it(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(script.parent))
    with pytest.raises(WorkloadError, match=r"script\.py:9 starts a run as it is imported"):
        load_workload("script:Tiny", {})
    assert "script" not in sys.modules


def test_a_workload_that_a_command_runs_starts_no_run(tmp_path: Path) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny")
    with (
        pytest.raises(WorkloadError, match="starts a run inside evertrain: start it from a pro"),
        users_code_in_command("check", config.workload),
    ):
        fit(config, storage=str(tmp_path), run="run")


def test_what_it_prints_in_a_command_is_no_part_of_the_commands_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with users_code_in_command("check", "mine:Mine"):
        sys.stdout.write("by Python\n")
        os.write(1, b"by a library written in C\n")
        subprocess.run(["echo", "by a program"], check=True)
        # Both hold it back until later.
        ctypes.CDLL(None).printf(b"buffered by the library\n")
        assert sys.__stdout__ is not None
        sys.__stdout__.write("by a stream that was there before\n")
        handler = logging.StreamHandler(sys.stdout)
    handler.emit(logging.makeLogRecord({"msg": "by a handler that was made inside"}))
    sys.stdout.write("the result\n")
    assert capfd.readouterr() == ("the result\n", "")


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (KeyError("epoch"), StageError, "check: KeyError: 'epoch'"),
        (SystemExit(3), StageError, r"check: it called sys.exit\(3\)"),
        (RunBusyError("night", "somebody"), RunBusyError, "driven by somebody"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_it_raises_in_a_command_is_an_error_of_the_command(
    error: BaseException, raised: type[BaseException], words: str | None
) -> None:
    with pytest.raises(raised, match=words), users_code_in_command("check", "mine:Mine"):
        raise error


def test_code_inside_a_process_of_evertrain_starts_no_run_by_any_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Restored at the end, as the variable was set through it.
    monkeypatch.setenv("EVERTRAIN_INSIDE", "")
    mark_this_process("worker")
    config = TrainConfig(workload="tests.rank.tiny:Tiny")
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    proof = VerifyResumeRequest(workload="tests.rank.tiny:Tiny", storage=str(tmp_path))
    for start in (
        lambda: fit(config, storage=str(tmp_path), run="run"),
        lambda: Driver.start(request),
        lambda: verify_resume(proof, tmp_path),
    ):
        with pytest.raises(WorkloadError) as refused:
            start()
        assert "test_inside.py:" in str(refused.value)
        assert "starts a run inside evertrain's worker" in str(refused.value)
