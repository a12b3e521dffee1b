"""Which tests hold what README and docs promise.

A test says `@pytest.mark.promise("key")`, with keys of tests/promises/promised.py.
`python -m tests.promises` writes the tables of docs/testing.md. With `--check`, a part of
`make check`, it writes nothing, and fails where a promise has no test that `make test` runs on
every machine, a promise that only slow tests hold has none that CI runs, a test names none of these
promises, or the tables are not what the tests say.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.promises.promised import HELD_BY_ALL_TESTS, PROMISES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/testing.md"
IN_CI = ROOT / "tests/slow_in_ci.txt"
"""The slow tests that CI runs for each commit: of each the file, the name, and which values."""
BEGIN, END = "<!-- promises: begin -->", "<!-- promises: end -->"
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


def faults_of(promises: Promises, held: list[Held], by_all: Promises) -> list[str]:
    """What is wrong with the promises and their tests; `by_all`: those of `make test-all`."""
    texts = {key: text for of_page in promises.values() for key, text in of_page.items()}
    texts_by_all = {key: text for of_page in by_all.values() for key, text in of_page.items()}
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
            f"{one.test} names the promise {one.promise!r}, "
            "which tests/promises/promised.py does not have"
            for one in held
            if one.promise not in texts | texts_by_all
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


def filled(page: str, promises: Promises, held: list[Held], by_all: Promises) -> str:
    """The page with the tables between its comments."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = table(promises, held)
    if by_all:
        tables += f"\n## Held by CI and `make test-all`\n\n{table(by_all, held)}"
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


def check(promises: Promises, tests: Path, page: Path, by_all: Promises) -> list[str]:
    """All that is wrong; nothing is written."""
    held = held_by(tests)
    if faults := faults_of(promises, held, by_all):
        return faults
    if filled(page.read_text(), promises, held, by_all) != page.read_text():
        return [f"{page} is stale: run `.venv/bin/python -m tests.promises`"]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    asked = parser.parse_args()
    if not asked.check:
        held = held_by(ROOT / "tests")
        PAGE.write_text(filled(PAGE.read_text(), PROMISES, held, HELD_BY_ALL_TESTS))
    if faults := check(PROMISES, ROOT / "tests", PAGE, HELD_BY_ALL_TESTS):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
