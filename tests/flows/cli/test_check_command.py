"""`evertrain check`: its findings are its output, whatever the workload itself prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evertrain_flows.cli.app import main
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


@pytest.fixture(autouse=True)
def noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The workloads' module, where the command finds it."""
    (tmp_path / "noisy.py").write_text(NOISY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(ACCEPT)
    yield
    sys.modules.pop("noisy", None)


def test_its_json_is_alone_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "noisy:Loud", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["tried"]
    assert not found["findings"]


def test_an_error_of_the_workload_is_one_line_with_its_place(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "noisy:Broken", "--json"]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert "KeyError: 'no_such_column'" in line
    assert "noisy.py, line 17, in dataset" in line
