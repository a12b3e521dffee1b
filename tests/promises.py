"""Which tests hold what README and docs promise.

A test says `@pytest.mark.promise("key")`, with keys of tests/promised.py.
`python -m tests.promises` writes the tables of docs/testing.md. With `--check`, a part of
`make check`, it writes nothing, and fails where a promise has no test that `make test` runs on
every machine, a test names none of these promises, or the tables are not what the tests say.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.promised import PROMISES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/testing.md"
BEGIN, END = "<!-- promises: begin -->", "<!-- promises: end -->"
LEFT_OUT_BY_MARK = {
    "slow": "slow",
    "s3": "S3",
    "skipif": "not on every machine",
    # Those of the tests of several nodes, from tests/cluster/ray_nodes.py.
    "MARKS": "slow",
}
LEFT_OUT_BY_FIXTURE = {"real_data": "MNIST's files"}
"""What a test has that `make test` leaves out, or skips on some machines, and the page's word."""

Promises = Mapping[str, Mapping[str, str]]
"""By their pages: the key and the sentence of each."""


@dataclass(frozen=True)
class Held:
    """A test that names a promise."""

    promise: str
    test: str
    left_out: str
    """Why `make test` may not run it; empty: it does, on every machine."""


def marks_in(marks: Iterable[ast.expr]) -> Iterator[tuple[str, list[object]]]:
    """The names of `pytest.mark.NAME` and `pytest.mark.NAME(…)`, and the constants in brackets."""
    for mark in marks:
        called = mark.func if isinstance(mark, ast.Call) else mark
        given = mark.args if isinstance(mark, ast.Call) else []
        name = ast.unparse(called).removeprefix("pytest.mark.")
        yield name, [one.value for one in given if isinstance(one, ast.Constant)]


def marks_of_module(module: ast.Module) -> list[ast.expr]:
    """What `pytestmark` says of all tests of a file."""
    for one in module.body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark":
            return one.value.elts if isinstance(one.value, ast.List) else [one.value]
    return []


def held_in(file: Path, where: str) -> Iterator[Held]:
    """The tests of a file that name a promise; it is called `where`."""
    module = ast.parse(file.read_text())
    of_all = marks_of_module(module)
    for one in module.body:
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
            marks = list(marks_in([*of_all, *one.decorator_list]))
            reasons = [LEFT_OUT_BY_MARK.get(name, "") for name, _ in marks]
            reasons += [LEFT_OUT_BY_FIXTURE.get(argument.arg, "") for argument in one.args.args]
            left_out = next(filter(None, reasons), "")
            for name, keys in marks:
                if name == "promise":
                    yield from (Held(str(key), f"{where}::{one.name}", left_out) for key in keys)


def held_by(tests: Path) -> list[Held]:
    """All tests below a folder that name a promise."""
    files = sorted(tests.rglob("test_*.py"))
    return [held for file in files for held in held_in(file, str(file.relative_to(tests)))]


def faults_of(promises: Promises, held: list[Held]) -> list[str]:
    """What is wrong with the promises and their tests."""
    texts = {key: text for of_page in promises.values() for key, text in of_page.items()}
    kept = {one.promise for one in held if not one.left_out}
    return [
        *(
            f"no test that `make test` runs on every machine holds the promise {key!r}: {text}"
            for key, text in texts.items()
            if key not in kept
        ),
        *(
            f"{one.test} names the promise {one.promise!r}, which tests/promised.py does not have"
            for one in held
            if one.promise not in texts
        ),
    ]


def table(promises: Promises, held: list[Held]) -> str:
    """For each page its promises, with their tests."""
    lines = []
    for page, of_page in promises.items():
        lines += [f"### {page}", "", "| key | promise | tests |", "| --- | --- | --- |"]
        for key, text in of_page.items():
            tests = [
                f"`{one.test}`" + (f" ({one.left_out})" if one.left_out else "")
                for one in held
                if one.promise == key
            ]
            lines.append(f"| `{key}` | {text} | {'<br>'.join(tests)} |")
        lines.append("")
    return "\n".join(lines)


def filled(page: str, promises: Promises, held: list[Held]) -> str:
    """The page with the table between its comments."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(promises, held)}\n{END}{after}"


def check(promises: Promises, tests: Path, page: Path) -> list[str]:
    """All that is wrong; nothing is written."""
    held = held_by(tests)
    if faults := faults_of(promises, held):
        return faults
    if filled(page.read_text(), promises, held) != page.read_text():
        return [f"{page} is stale: run `.venv/bin/python -m tests.promises`"]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    asked = parser.parse_args()
    if not asked.check:
        PAGE.write_text(filled(PAGE.read_text(), PROMISES, held_by(ROOT / "tests")))
    if faults := check(PROMISES, ROOT / "tests", PAGE):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
