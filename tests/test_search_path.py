"""A user's folder may have a file of any name: it never stands for Python's or for a package's.

flows/cli/test_proxy.py trains in such a folder.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands
from tests.flows.conftest import isolated
from tests.marks import slow
from tests.users_project import write_project
from train_core import search_path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    write_project(folder)
    return folder


def evertrain(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The installed program, which knows of the repository by its installation only."""
    inherited = {key: value for key, value in isolated(folder).items() if key != "PYTHONPATH"}
    return commands.run(
        [Path(sys.executable).parent / "evertrain", *arguments],
        cwd=folder,
        env={**inherited, **variables},
    )


@pytest.mark.promise("own-names")
@pytest.mark.parametrize("variable", ["", slow("PYTHONPATH"), slow("EVERTRAIN_PATH")])
def test_a_command_finds_the_module_and_nothing_that_is_beside_it(
    project: Path, tmp_path: Path, variable: str
) -> None:
    folder = tmp_path if variable else project
    done = evertrain(
        folder, "workloads", "mine:Mine", **({variable: str(project)} if variable else {})
    )
    assert done.returncode == 0, done.stderr
    assert "learning_rate" in done.stdout


@pytest.mark.promise("own-names")
def test_a_workload_whose_name_is_taken_is_refused_by_name(project: Path) -> None:
    done = evertrain(project, "workloads", "statistics:Mine")
    own, taken_by = project / "statistics.py", Path(os.__file__).parent / "statistics.py"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "evertrain: workload 'statistics:Mine': statistics has no Workload named 'Mine'. "
        f"{own} is not found, as its name is taken by {taken_by}: rename it\n"
    )


def test_every_python_that_is_started_gets_that_environment() -> None:
    root = Path(search_path.__file__).resolve().parents[1]
    sources = [
        one for name in ("flows", "tasks", "train_core") for one in (root / name).rglob("*.py")
    ]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source.read_text()))]
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        if call.args and "sys.executable" in ast.unparse(call.args[0]):
            given = {one.arg: ast.unparse(one.value) for one in call.keywords}
            assert re.search(r"\benvironment(_of)?\(", given.get("env", "")), ast.unparse(call)


def test_what_is_found_before_the_standard_library_goes_to_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = str(Path(os.__file__).parent)
    monkeypatch.setenv("EVERTRAIN_PATH", f"{tmp_path}/b{os.pathsep}{tmp_path}/a{os.pathsep}")
    monkeypatch.setenv("PYTHONPATH", "/site-packages")
    home = str(Path(search_path.__file__).parents[1])
    monkeypatch.setattr(sys, "path", [f"{tmp_path}/a", home, library, "/site-packages"])
    search_path.put_users_folders_last()
    assert sys.path == [home, library, "/site-packages", f"{tmp_path}/a", f"{tmp_path}/b"]
    search_path.put_users_folders_last()
    assert sys.path == [home, library, "/site-packages", f"{tmp_path}/a", f"{tmp_path}/b"]
