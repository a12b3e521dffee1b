"""Nothing of evertrain names what stores or reads pickles; between ranks, torch uses them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
FILES_OF_A_FUNCTION = {"train_core/predictors.py": {"pickle", "torch.load"}}
"""What a training function wrote itself is read there, as tensors only, or as the run trusts it:
tests/compat/test_predictors.py."""
FORBIDDEN_CALLS = {
    "torch": {"load", "save"},
    "np": {"load"},
    "numpy": {"load"},
    "pd": {"read_pickle", "to_pickle"},
    "pandas": {"read_pickle", "to_pickle"},
}


def picklers_in(source: str) -> set[str]:
    """What a program imports or calls that reads or writes pickles."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & FORBIDDEN_MODULES
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").partition(".")[0]
            found |= {module} & FORBIDDEN_MODULES
            names = {alias.name for alias in node.names}
            found |= {f"{module}.{name}" for name in names & FORBIDDEN_CALLS.get(module, set())}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in FORBIDDEN_CALLS.get(node.value.id, ()):
                found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.add("allow_pickle")
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", "pickle"),
        ("from cloudpickle import dumps", "cloudpickle"),
        ("import torch; torch.load(x)", "torch.load"),
        ("from torch import save", "torch.save"),
        ("np.load(x, allow_pickle=True)", "allow_pickle"),
    ],
)
def test_a_pickler_is_found(source: str, found: str) -> None:
    assert found in picklers_in(source)


@pytest.mark.promise("no-pickle")
def test_nothing_of_evertrain_reads_or_writes_pickles() -> None:
    files = [
        file for room in ("flows", "tasks", "train_core") for file in (ROOT / room).rglob("*.py")
    ]
    assert len(files) > 50
    found = {
        file.relative_to(ROOT).as_posix(): names
        for file in files
        if (names := picklers_in(file.read_text()))
    }
    assert found == FILES_OF_A_FUNCTION
