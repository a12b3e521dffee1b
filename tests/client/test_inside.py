"""Code that a driver, a worker or an import runs starts no run: one line says so, and where."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from train_core import fit
from train_core.client.driver_handle import Driver
from train_core.client.isolated import settings_schema
from train_core.client.verify_resume import VerifyResumeRequest, verify_resume
from train_core.config import TrainConfig
from train_core.errors import WorkloadError
from train_core.inside import mark_this_process
from train_core.loading import load_workload
from train_core.requests import DriverRequest

SCRIPT = """\
from tests.engine.tiny import Tiny as Base
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
    return subprocess.run(
        [sys.executable, *command],
        cwd=script.parent,
        env=os.environ | {"PYTHONPATH": path, "LEFT_BY": str(script)},
        capture_output=True,
        text=True,
        check=False,
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


@pytest.mark.parametrize(
    "load", [lambda name: load_workload(name, {}), settings_schema], ids=["here", "isolated"]
)
def test_whatever_imports_the_workload_refuses_it(
    script: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[str], object]
) -> None:
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setenv("PYTHONPATH", str(script.parent), prepend=os.pathsep)
    with pytest.raises(WorkloadError, match=r"script\.py:9 starts a run as it is imported"):
        load("script:Tiny")
    assert "script" not in sys.modules


def test_code_inside_a_process_of_evertrain_starts_no_run_by_any_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Restored at the end, as the variable was set through it.
    monkeypatch.setenv("EVERTRAIN_INSIDE", "")
    mark_this_process("worker")
    config = TrainConfig(workload="tests.engine.tiny:Tiny")
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    proof = VerifyResumeRequest(workload="tests.engine.tiny:Tiny", storage=str(tmp_path))
    for start in (
        lambda: fit(config, storage=str(tmp_path), run="run"),
        lambda: Driver.start(request),
        lambda: verify_resume(proof, tmp_path),
    ):
        with pytest.raises(WorkloadError) as refused:
            start()
        assert "test_inside.py:" in str(refused.value)
        assert "starts a run inside evertrain's worker" in str(refused.value)
