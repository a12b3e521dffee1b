"""`evertrain check`: its findings are its output, whatever the workload itself prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.flows.conftest import isolated
from train_core.requests import ACCEPT

NOISY = """
import subprocess
from train_core.workloads.digits import Digits

print("the module prints this")


class Loud(Digits):
    def dataset(self, split):
        print("and its dataset that")
        subprocess.run(["echo", "and a program this"], check=True)
        return super().dataset(split)


class Broken(Digits):
    def dataset(self, split):
        return {}["no_such_column"]
"""


def check(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    """The command, in the folder with the workload's module."""
    (folder / "noisy.py").write_text(NOISY)
    return subprocess.run(
        [sys.executable, "-m", "evertrain_flows.cli", "check", f"noisy:{name}", "--json"],
        cwd=folder,
        env={name: one for name, one in isolated(folder).items() if name != ACCEPT},
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_json_is_alone_on_stdout(tmp_path: Path) -> None:
    done = check(tmp_path, "Loud")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tried"]
    assert not found["findings"]


def test_an_error_of_the_workload_is_one_line_with_its_place(tmp_path: Path) -> None:
    done = check(tmp_path, "Broken")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "KeyError: 'no_such_column'" in line
    assert "noisy.py, line 17, in dataset" in line
