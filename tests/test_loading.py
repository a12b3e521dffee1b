"""A workload by its name: what is wrong with it is said in the words of its author."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from evertrain_flows.cli.app import main
from tests import commands
from tests.flows.conftest import isolated
from train_core.described_errors import describe, rebuild
from train_core.errors import WorkloadError
from train_core.loading import load_function, load_workload, parse_settings
from train_core.workload import indexed

SCRIPT = "import sys\nprint('training …')\nsys.exit({code!r})\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that is a script: it ends the interpreter as it is imported."""
    (tmp_path / "a_script.py").write_text(SCRIPT.format(code=3))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    return "a_script"


@pytest.mark.promise("one-line-refusal")
def test_a_module_that_calls_sys_exit_is_said_to(script: str) -> None:
    with pytest.raises(
        WorkloadError,
        match=r"imported: it called sys.exit\(3\) \(a_script.py, line 3, in <module>\)\. Name",
    ):
        load_workload(f"{script}:Net", {})
    with pytest.raises(WorkloadError, match=r"it called sys.exit\(3\)"):
        load_function(f"{script}:train")


@pytest.mark.promise("one-line-refusal")
def test_its_command_ends_with_one_line(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads", f"{script}:Net"]) == 2
    captured = capsys.readouterr()
    assert f"workload '{script}:Net' cannot be imported: it called sys.exit(3)" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"workload": "{}:Net"}, {"train_fn": "{}:train"}], ids=str)
def test_its_training_is_refused_in_one_line(
    given: dict[str, str], script: str, tmp_path: Path
) -> None:
    (flag, name), *_ = given.items()
    done = commands.run(
        [*(*commands.EVERTRAIN, "retrain"), *(f"--{flag.replace('_', '-')}", name.format(script))],
        cwd=tmp_path,
        env=isolated(tmp_path),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "it called sys.exit(3)" in done.stderr
    assert "ended unexpectedly" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_are_echoed_in_short_and_without_passwords() -> None:
    name = "train_core.workloads.digits:Digits"
    with pytest.raises(WorkloadError, match=r"more characters\)'") as refused:
        parse_settings(name, {"width": "x" * 120_000})
    assert len(str(refused.value)) < 1000
    with pytest.raises(WorkloadError, match=r"got 'http://\*\*\*@host'"):
        parse_settings(name, {"width": "http://me:pw@host"})
    assert json.loads(json.dumps(parse_settings(name, {"width": 4}).model_dump()))["width"] == 4


INSTALLED = """
from train_core.workloads.digits import Digits


class Nightly(Digits):
    def dataset(self, split):
        return {}["no_such_column"]
"""


def test_a_workload_that_is_installed_beside_the_libraries_is_still_the_users_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lib/python3.11/site-packages"
    (folder / "nightly_models").mkdir(parents=True)
    (folder / "nightly_models/__init__.py").write_text("")
    (folder / "nightly_models/table.py").write_text(INSTALLED)
    monkeypatch.syspath_prepend(str(folder))
    workload = load_workload("nightly_models.table:Nightly", {})
    with pytest.raises(KeyError) as raised:
        indexed(workload, "train")
    said = str(rebuild(describe("prepare", raised.value)))
    assert said == (
        "prepare: KeyError: 'no_such_column', in the train split (table.py, line 7, in dataset)"
    )


def test_a_module_that_fails_as_it_is_imported_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails_at_once.py").write_text("import os\nRATE = os.environ['NO_SUCH_RATE']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    line = r"KeyError: 'NO_SUCH_RATE' \(fails_at_once.py, line 2, in <module>\)\. Name it as"
    with pytest.raises(WorkloadError, match=line):
        load_workload("fails_at_once:Any", {})
