"""A failed run of tests says what failed, what its processes said, and how to run it alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands
from tests.marks import slow
from tests.plugins import reporting

FAILING = """
def test_fails(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/driver.log").write_text("first\\n" * 40 + "the driver ended: no memory\\n")
    assert False

def test_passes(tmp_path):
    (tmp_path / "other.log").write_text("all is well")
"""


def run_pytest(folder: Path, tests: str, processes: str) -> subprocess.CompletedProcess[str]:
    """What pytest says of these tests."""
    shutil.copy(reporting.__file__, folder / "conftest.py")
    (folder / "test_it.py").write_text(tests)
    return commands.run(
        [sys.executable, "-m", "pytest", "-n", processes, "--phases", f"--rootdir={folder}"],
        cwd=folder,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
    )


@pytest.mark.parametrize("processes", ["0", slow("1")])
def test_the_last_lines_name_the_test_its_log_and_the_command(
    processes: str, tmp_path: Path
) -> None:
    ended = run_pytest(tmp_path, FAILING, processes)
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


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ("import os\ndef test_dies(): os._exit(9)", "test_it.py::test_dies failed (???)"),
        ("import nowhere", "test_it.py failed (collect)"),
    ],
)
@pytest.mark.slow
def test_so_they_do_where_a_process_died_or_a_file_cannot_be_imported(
    tests: str, told: str, tmp_path: Path
) -> None:
    ended = run_pytest(tmp_path, tests, "1")
    assert ended.returncode != 0
    failed, logs, alone = ended.stdout.splitlines()[-3:]
    assert failed == told
    assert logs == "  its logs: none was written"
    assert alone == f"  alone:    .venv/bin/pytest {told.partition(' ')[0]}"
