"""Which tests hold what README and docs promise.

The tables of docs/testing.md have the promises: a new one is a new row, without tests. A test says
`@pytest.mark.promise("key")`, and `python -m tests.promises` writes the tests into the rows. With
`--check`, a part of `make check`, it writes nothing, and fails where a promise has no test that
`make test` runs on every machine, a promise that only slow tests hold has none that CI runs, a test
names none of these promises, or the rows are not what the tests say.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/testing.md"
IN_CI = ROOT / "tests/slow_in_ci.txt"
"""The slow tests that CI runs for each commit: of each the file, the name, and which values."""
BEGIN, END = "<!-- promises: begin -->", "<!-- promises: end -->"
BY_ALL_TESTS = "## Held by CI and `make test-all`"
"""Below it are those whose tests take ten CPU seconds and more, an S3 server or networks."""
ROW = re.compile(r"^\| `([\w-]+)` \| (.+?) \| .*\|$", re.MULTILINE)
"""A promise: its key, its sentence, and its tests."""
SLOW = "slow"
LEFT_OUT_BY_MARK = {
    "slow": SLOW,
    "s3": "S3",
    "skipif": "not on every machine",
    # Those of the tests of several nodes, from tests/nodes/ray_nodes.py.
    "MARKS": SLOW,
}
LEFT_OUT_BY_FIXTURE = {"real_data": "MNIST's files", "object_store": "S3"}
"""What a test has that `make test` leaves out, or skips on some machines, and the page's word."""


@dataclass(frozen=True)
class Held:
    """A test that names a promise."""

    promise: str
    test: str
    left_out: str
    """Why `make test` may not run it; empty: it does, on every machine."""


def marks_in(marks: Iterable[ast.expr]) -> Iterator[tuple[str, list[object]]]:
    """The names of `pytest.mark.NAME` and `pytest.mark.NAME(…)`, and the constants in brackets."""
    for given_mark in marks:
        mark = given_mark.value if isinstance(given_mark, ast.Starred) else given_mark
        called = mark.func if isinstance(mark, ast.Call) else mark
        given = mark.args if isinstance(mark, ast.Call) else []
        name = ast.unparse(called).removeprefix("pytest.mark.")
        yield name, [one.value for one in given if isinstance(one, ast.Constant)]


def marks_of_module(module: ast.Module) -> list[ast.expr]:
    """What `pytestmark` says of all tests of a file."""
    for one in module.body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark":
            listed = isinstance(one.value, ast.List | ast.Tuple)
            return one.value.elts if listed else [one.value]
    return []


def has_slow_values_only(mark: ast.expr) -> bool:
    """Whether it is a `parametrize` all of whose values are `slow(…)`."""
    if not isinstance(mark, ast.Call) or not ast.unparse(mark.func).endswith("parametrize"):
        return False
    values = mark.args[1] if len(mark.args) > 1 else None
    if not isinstance(values, ast.List | ast.Tuple) or not values.elts:
        return False
    return all(isinstance(one, ast.Call) and ast.unparse(one.func) == "slow" for one in values.elts)


def held_in(file: Path, where: str) -> Iterator[Held]:
    """The tests of a file that name a promise; it is called `where`."""
    in_ci = {line.partition("[")[0] for line in IN_CI.read_text().splitlines()}
    module = ast.parse(file.read_text())
    of_all = marks_of_module(module)
    for one in module.body:
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
            marks = list(marks_in([*of_all, *one.decorator_list]))
            reasons = [LEFT_OUT_BY_MARK.get(name, "") for name, _ in marks]
            reasons += [SLOW for mark in one.decorator_list if has_slow_values_only(mark)]
            reasons += [LEFT_OUT_BY_FIXTURE.get(argument.arg, "") for argument in one.args.args]
            # A slow test is in no other part of CI, whatever else it needs.
            left_out = max(reasons, key=lambda why: (why == SLOW, bool(why)), default="")
            if left_out and in_ci & {f"tests/{where}", f"tests/{where}::{one.name}"}:
                left_out += ", in CI"
            for name, keys in marks:
                if name == "promise":
                    yield from (Held(str(key), f"{where}::{one.name}", left_out) for key in keys)


def held_by(tests: Path) -> list[Held]:
    """All tests below a folder that name a promise."""
    files = sorted(tests.rglob("test_*.py"))
    return [held for file in files for held in held_in(file, str(file.relative_to(tests)))]


def promised_in(page: str) -> tuple[dict[str, str], dict[str, str]]:
    """The sentences of the page's promises by their keys, and of those of `make test-all` alone."""
    tables = page.partition(BEGIN)[2].partition(END)[0]
    everywhere, _, by_all = tables.partition(BY_ALL_TESTS)
    return dict(ROW.findall(everywhere)), dict(ROW.findall(by_all))


def faults_of(page: str, held: list[Held]) -> list[str]:
    """What is wrong with the page's promises and their tests."""
    texts, texts_by_all = promised_in(page)
    kept = {one.promise for one in held if not one.left_out}
    kept_by_all = {one.promise for one in held}
    kept_in_ci = {one.promise for one in held if one.left_out != SLOW}
    return [
        *(
            f"no test that `make test` runs on every machine holds the promise {key!r}: {text}"
            for key, text in texts.items()
            if key not in kept
        ),
        *(
            f"no test holds the promise {key!r}: {text}"
            for key, text in texts_by_all.items()
            if key not in kept_by_all
        ),
        *(
            f"only slow tests hold the promise {key!r}, and {IN_CI.name} has none of them: {text}"
            for key, text in texts_by_all.items()
            if key in kept_by_all - kept_in_ci
        ),
        *(
            f"{one.test} names the promise {one.promise!r}, which {PAGE.name} does not have"
            for one in held
            if one.promise not in texts | texts_by_all
        ),
    ]


def filled(page: str, held: list[Held]) -> str:
    """The page with the tests in the rows of its promises."""

    def row(found: re.Match[str]) -> str:
        key, text = found.groups()
        tests = [
            f"`{one.test}`" + (f" ({one.left_out})" if one.left_out else "")
            for one in held
            if one.promise == key
        ]
        return f"| `{key}` | {text} | {'<br>'.join(tests)} |"

    before, begin, rest = page.partition(BEGIN)
    tables, end, after = rest.partition(END)
    return f"{before}{begin}{ROW.sub(row, tables)}{end}{after}"


def check(page: Path, tests: Path) -> list[str]:
    """All that is wrong; nothing is written."""
    held, written = held_by(tests), page.read_text()
    if faults := faults_of(written, held):
        return faults
    if filled(written, held) != written:
        return [f"{page} is stale: run `.venv/bin/python -m tests.promises`"]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    asked = parser.parse_args()
    if not asked.check:
        PAGE.write_text(filled(PAGE.read_text(), held_by(ROOT / "tests")))
    if faults := check(PAGE, ROOT / "tests"):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
