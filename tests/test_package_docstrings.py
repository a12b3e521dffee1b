"""Packages whose docstring lists their modules: the list has each module once, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    path for room in ("train_core", "flows", "tasks") for path in (ROOT / room).rglob("__init__.py")
)
# `* \`name\`: …`, or `name, name   …` in columns.
_ENTRY = re.compile(r"^ *(?:\* `(?P<listed>[\w/]+)`:|(?P<column>[a-z_]+/?(?:, [a-z_]+)*)  +\S)")


def index_of(package: Path) -> list[str]:
    """The modules and packages that the docstring of a package lists, in its order."""
    text = ast.get_docstring(ast.parse(package.read_text())) or ""
    found = [match for line in text.splitlines() if (match := _ENTRY.match(line))]
    entries = [match["listed"] or match["column"] for match in found]
    return [name.rstrip("/") for entry in entries for name in entry.split(", ")]


def modules_of(package: Path) -> list[str]:
    """The modules and packages that are beside an `__init__.py`."""
    beside = package.parent.iterdir()
    packages = {path.name for path in beside if (path / "__init__.py").exists()}
    return sorted(packages | {path.stem for path in package.parent.glob("[!_]*.py")})


@pytest.mark.parametrize(
    "package", [p for p in PACKAGES if index_of(p)], ids=lambda p: str(p.parent.relative_to(ROOT))
)
def test_the_index_of_a_package_lists_each_of_its_modules_once(package: Path) -> None:
    assert sorted(index_of(package)) == modules_of(package)


def test_an_index_is_read_in_both_of_its_forms(tmp_path: Path) -> None:
    package = tmp_path / "__init__.py"
    package.write_text(
        '"""Rooms.\n\n* `one`: a\n* `two/`: b\n\nthree, four   c\n    five/  d\n"""\n'
    )

    assert index_of(package) == ["one", "two", "three", "four", "five"]


def test_packages_have_indexes() -> None:
    assert sum(bool(index_of(package)) for package in PACKAGES) >= 5
