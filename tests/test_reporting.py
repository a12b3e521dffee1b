"""A failed run of tests says what failed, what its processes said, and how to run it alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import reporting
from tests.marks import slow

FAILING = """
def test_fails(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/driver.log").write_text("first\\n" * 40 + "the driver ended: no memory\\n")
    assert False

def test_passes(tmp_path):
    (tmp_path / "other.log").write_text("all is well")
"""


@pytest.mark.parametrize("processes", [slow("0"), "1"])
def test_the_last_lines_name_the_test_its_log_and_the_command(
    processes: str, tmp_path: Path
) -> None:
    shutil.copy(reporting.__file__, tmp_path / "conftest.py")
    (tmp_path / "test_it.py").write_text(FAILING)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", processes, "--phases", f"--rootdir={tmp_path}"],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    *_, seconds, failed, logs, alone = ended.stdout.splitlines()
    assert "test_it.py  setup" in seconds
    assert failed == "test_it.py::test_fails failed (call)"
    assert logs.startswith("  its logs: ")
    assert logs.endswith("deep/driver.log")
    assert alone == "  alone:    .venv/bin/pytest test_it.py::test_fails"
    assert "the driver ended: no memory" in ended.stdout
    assert ended.stdout.splitlines().count("first") == 14
    assert "other.log" not in ended.stdout
