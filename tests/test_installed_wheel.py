"""Who installs the wheel alone gets what works together: no file of constraints, no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import commands
from tests.flows.conftest import isolated
from tests.test_distribution import built, checkout

__all__ = ["checkout"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_wheel_in_an_empty_environment_trains_the_demo(checkout: Path, tmp_path: Path) -> None:
    wheel = built("wheel", checkout, tmp_path / "wheel")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    binaries = tmp_path / "empty/bin"
    # torch of the version that is here: another one may be a build of gigabytes.
    torch = f"torch=={version('torch').partition('+')[0]}"
    subprocess.run(
        [binaries / "python", "-m", "pip", "install", "--quiet", wheel, torch],
        check=True,
        cwd=tmp_path,
    )
    subprocess.run([binaries / "python", "-m", "pip", "check"], check=True, cwd=tmp_path)

    home = tmp_path / "home"
    home.mkdir()
    environment = isolated(home)
    del environment["PYTHONPATH"]
    storage = tmp_path / "runs"
    environment |= {"HOME": str(home), "EVERTRAIN_STORAGE": str(storage)}
    environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"
    where = "import train_core; print(train_core.__file__)"
    found = subprocess.check_output(
        [binaries / "python", "-c", where], env=environment, cwd=home, text=True
    )
    assert found.startswith(f"{tmp_path}/empty/")
    commands.succeed([binaries / "evertrain", "demo"], env=environment, cwd=home)
    report = json.loads((storage / "demo-001/report.json").read_text())
    assert report["test_metrics"]["accuracy"] > 0.9
    assert report["gate"]["decision"]["outcome"] == "promote"
