"""What is started by name is there, and its name stands in one file: no import would show it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name

import pytest

from train_core import entry_points
from train_core.driver.runner import Runner
from train_core.entry_points import (
    FUNCTION_RUNNER,
    FUNCTIONS,
    ISOLATED_FUNCTIONS,
    PROGRAMS,
    WORKER_FUNCTIONS,
)

_ROOT = Path(entry_points.__file__).parents[1]
_SOURCES = sorted(
    path
    for package in ("flows", "tasks", "train_core")
    for path in (_ROOT / package).rglob("*.py")
    if path != Path(entry_points.__file__)
)
_OURS = r"(?:evertrain_flows|evertrain_tasks|train_core)(?:\.\w+)+"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_can_be_imported_and_runs_only_when_it_is_started(name: str) -> None:
    module = import_module(name)
    guards = [
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    ]
    assert len(guards) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_there(name: str) -> None:
    module, _, function = name.partition(":")
    assert inspect.isfunction(getattr(import_module(module), function))


def test_the_runner_of_training_functions_is_one() -> None:
    assert issubclass(resolve_name(FUNCTION_RUNNER), Runner)


def test_every_name_of_the_file_is_looked_at() -> None:
    named = {value for key, value in vars(entry_points).items() if key.isupper()}
    tables = {PROGRAMS, FUNCTIONS, WORKER_FUNCTIONS, ISOLATED_FUNCTIONS}
    assert named == {*tables, *PROGRAMS, *FUNCTIONS, FUNCTION_RUNNER}


@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_no_other_file_names_one(path: Path) -> None:
    assert not list(started_by_name(path.read_text()))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('run([sys.executable, "-m", "train_core.engine.tool"])', ["train_core.engine.tool"]),
        ('run([*(python, "-m", "evertrain_flows.cli"), "x"])', ["evertrain_flows.cli"]),
        ('run("python -m evertrain_tasks.one --fast")', ["evertrain_tasks.one"]),
        ('pool.map("train_core.engine.tool:score", parts)', ["train_core.engine.tool:score"]),
        ('run([sys.executable, "-m", DRIVER])', []),
        ('run([sys.executable, "-m", "mlflow"])', []),
        ('workload = "train_core.workloads.digits:Digits"', []),
        ('def f():\n    """Started as `python -m evertrain_flows.cli`."""', []),
    ],
)
def test_a_name_is_recognized(code: str, found: list[str]) -> None:
    assert list(started_by_name(code)) == found


def started_by_name(code: str) -> Iterator[str]:
    """The programs and functions of ours that strings of the code name, its docstrings aside."""
    tree = ast.parse(code)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from re.findall(rf"-m ({_OURS})", node.value)
            yield from re.findall(rf"^{_OURS}:[a-z_]\w*$", node.value)
        if isinstance(node, ast.List | ast.Tuple):
            words = [one.value if isinstance(one, ast.Constant) else None for one in node.elts]
            yield from (
                str(program)
                for option, program in pairwise(words)
                if option == "-m" and re.fullmatch(_OURS, str(program))
            )
