"""The checker of promises finds a promise that nobody holds, and a table that is not true."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.promises import __main__ as promises
from tests.promises.__main__ import (
    BEGIN,
    BY_ALL_TESTS,
    END,
    IN_CI,
    PAGE,
    ROOT,
    check,
    filled,
    held_by,
    promised_in,
)

EXACT = f"before\n{BEGIN}\n| `exact` | A run is exact. | |\n{END}\nafter\n"
MARKED = '@pytest.mark.promise("exact")\n'


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    (tmp_path / "tests/deep").mkdir(parents=True)
    return tmp_path / "tests"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "testing.md"


def write(tests: Path, marks: str, *, name: str = "a", arguments: str = "", head: str = "") -> None:
    """A file with a test that has these marks, below a line that is for all of its tests."""
    source = f"import pytest\n\n{head}\n\n{marks}def test_{name}({arguments}) -> None: ...\n"
    (tests / f"deep/test_{name}.py").write_text(source)


def faults(tests: Path, page: Path) -> list[str]:
    """What is wrong, where the table is what the tests say."""
    page.write_text(filled(EXACT, held_by(tests)))
    return check(page, tests)


def test_a_promise_is_held_by_a_test_that_names_it(tests: Path, page: Path) -> None:
    write(tests, MARKED + '@pytest.mark.parametrize("slow", [1])\n', arguments="slow: int")
    assert faults(tests, page) == []
    row = "| `exact` | A run is exact. | `deep/test_a.py::test_a` |"
    assert page.read_text() == f"before\n{BEGIN}\n{row}\n{END}\nafter\n"


@pytest.mark.parametrize(
    "test",
    [
        pytest.param({"marks": MARKED + "@pytest.mark.slow\n"}, id="slow"),
        pytest.param({"marks": MARKED + "@pytest.mark.s3\n"}, id="s3"),
        pytest.param({"marks": MARKED + "@pytest.mark.skipif(True, reason='')\n"}, id="skipif"),
        pytest.param({"marks": MARKED, "arguments": "real_data: Path"}, id="a fixture"),
        pytest.param({"marks": MARKED, "head": "pytestmark = pytest.mark.slow"}, id="all slow"),
        pytest.param(
            {"marks": MARKED, "head": "pytestmark = [pytest.mark.timeout(9), pytest.mark.slow]"},
            id="all slow, in a list",
        ),
        pytest.param({"marks": MARKED, "head": "pytestmark = MARKS"}, id="those of tests/nodes"),
        pytest.param({"marks": MARKED, "head": "pytestmark = [*MARKS, 1]"}, id="those and more"),
        pytest.param({"marks": MARKED, "arguments": "object_store: str"}, id="an S3 server"),
        pytest.param(
            {"marks": MARKED + '@pytest.mark.parametrize("x", [slow(1), slow(2)])\n'},
            id="each value slow",
        ),
        pytest.param({"marks": ""}, id="no marker"),
    ],
)
def test_a_promise_whose_tests_do_not_run_everywhere_is_found(
    test: dict[str, str], tests: Path, page: Path
) -> None:
    write(tests, **test)
    (found,) = faults(tests, page)
    assert found == (
        "no test that `make test` runs on every machine holds the promise 'exact': A run is exact."
    )
    write(tests, MARKED, name="cheap")
    assert faults(tests, page) == []


def test_a_test_that_is_not_run_everywhere_is_told_as_one(tests: Path, page: Path) -> None:
    write(tests, MARKED)
    write(tests, MARKED, name="b", head="pytestmark = pytest.mark.slow")
    write(tests, MARKED + "@pytest.mark.s3\n", name="c")
    assert faults(tests, page) == []
    assert (
        "| `deep/test_a.py::test_a`<br>`deep/test_b.py::test_b` (slow)<br>"
        "`deep/test_c.py::test_c` (S3) |"
    ) in page.read_text()


def test_a_promise_that_nobody_made_is_found(tests: Path, page: Path) -> None:
    write(tests, '@pytest.mark.promise("exact", "quick")\n')
    (fault,) = faults(tests, page)
    assert fault.startswith("deep/test_a.py::test_a names the promise 'quick', which ")
    assert fault.endswith(" does not have")


def test_a_page_that_is_stale_is_found_and_not_written(tests: Path, page: Path) -> None:
    write(tests, MARKED)
    assert faults(tests, page) == []
    write(tests, MARKED, name="b")
    before = page.read_text()
    (found,) = check(page, tests)
    assert found.startswith(f"{page} is stale: run ")
    assert page.read_text() == before


def test_the_promises_are_those_of_pages_that_exist_and_each_key_is_of_one() -> None:
    page = PAGE.read_text()
    tables = page.partition(BEGIN)[2]
    of = re.findall(r"^### (.+)$", tables, re.MULTILINE)
    assert [page for page in of if not (ROOT / page).is_file()] == []
    counted = Counter(re.findall(r"^\| `([^`]*)", tables, re.MULTILINE))
    assert [key for key, count in counted.items() if count > 1] == []
    assert [*counted] == [key for promises in promised_in(page) for key in promises]


def test_a_promise_of_all_tests_needs_one_that_may_be_slow_and_that_ci_runs(
    tests: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tests, MARKED)
    more = f"{BY_ALL_TESTS}\n| `nodes` | A node may vanish. | |\n{END}"
    page.write_text(filled(EXACT.replace(END, more), held_by(tests)))
    assert check(page, tests) == ["no test holds the promise 'nodes': A node may vanish."]
    write(tests, '@pytest.mark.promise("nodes")\n@pytest.mark.slow\n', name="b")
    page.write_text(filled(page.read_text(), held_by(tests)))
    (fault,) = check(page, tests)
    assert fault.startswith("only slow tests hold the promise 'nodes', and slow_in_ci.txt has none")
    monkeypatch.setattr(promises, "IN_CI", tests / "in_ci.txt")
    promises.IN_CI.write_text("tests/deep/test_b.py::test_b[disk]\n")
    page.write_text(filled(page.read_text(), held_by(tests)))
    assert check(page, tests) == []
    assert (
        "| `nodes` | A node may vanish. | `deep/test_b.py::test_b` (slow, in CI) |"
        in page.read_text()
    )


def test_the_slow_tests_of_ci_are_there() -> None:
    for line in IN_CI.read_text().splitlines():
        file, _, name = line.partition("[")[0].partition("::")
        source = (ROOT / file).read_text()
        assert not name or f"def {name}(" in source, line
