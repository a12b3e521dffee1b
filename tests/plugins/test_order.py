"""Tests that say how long something takes run beside none that loads both cores."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from tests.plugins.order import (
    GROUPS,
    LOADS_BOTH_CORES,
    LONGEST,
    MEASURES_TIME,
    PIPELINES,
    RAY,
    SHARE_NOTHING,
    WAITS,
    SlowestFirst,
    cores_for,
    group_of,
    in_order,
    next_of,
)

HEAVY, TIMED, OTHER = LOADS_BOTH_CORES[0], MEASURES_TIME[0], "policy/test_names"
TESTS = Path(__file__).parents[1]


def is_let_in(group: str, locks: Path) -> threading.Event:
    """Set once a test of the group may run, in a thread that then ends."""
    let_in = threading.Event()

    def enter() -> None:
        with cores_for(group, locks):
            let_in.set()

    threading.Thread(target=enter).start()
    return let_in


@pytest.mark.parametrize(("first", "second"), [(HEAVY, TIMED), (TIMED, HEAVY)])
def test_the_second_waits_for_the_first(first: str, second: str, tmp_path: Path) -> None:
    with cores_for(first, tmp_path):
        let_in = is_let_in(second, tmp_path)
        assert not let_in.wait(0.2)
    assert let_in.wait(30)


@pytest.mark.parametrize(("first", "second"), [(HEAVY, HEAVY), (TIMED, TIMED), (TIMED, OTHER)])
def test_these_run_side_by_side(first: str, second: str, tmp_path: Path) -> None:
    with cores_for(first, tmp_path):
        assert is_let_in(second, tmp_path).wait(30)


def test_one_that_measures_time_is_not_overtaken(tmp_path: Path) -> None:
    with ExitStack() as running:
        running.enter_context(cores_for(HEAVY, tmp_path))
        timed = is_let_in(TIMED, tmp_path)
        assert not timed.wait(0.2)
        late = is_let_in(HEAVY, tmp_path)
        assert not late.wait(0.2)
    assert timed.wait(30)
    assert late.wait(30)


def test_the_groups_are_those_of_files_that_exist() -> None:
    files = [str(file.relative_to(TESTS)) for file in TESTS.rglob("test_*.py")]
    groups = {group_of(f"tests/{file}") for file in files}
    assert {*LONGEST, *WAITS} <= groups
    assert {*MEASURES_TIME} <= {*WAITS}
    assert not [name for name in (*LONGEST, *WAITS) if name.startswith(LOADS_BOTH_CORES)]
    for begin in LOADS_BOTH_CORES:
        assert any(group.startswith(begin) for group in groups)
    for begin in GROUPS:
        assert any(file.startswith(begin) for file in files), begin


def test_tests_that_share_nothing_are_groups_of_their_own_at_the_place_of_their_file() -> None:
    tests = [f"tests/{SHARE_NOTHING}.py::test_a[{number}]" for number in range(2)]
    assert group_of(tests[0]) != group_of(tests[1])
    other = "tests/policy/test_names.py::test"
    assert in_order([tests[0], other, tests[1]]) == [*tests, other]


def test_what_loads_both_cores_runs_first_and_then_what_waits() -> None:
    others = [f"tests/policy/test_{number}.py::test" for number in range(5)]
    long, heavy, waiting = (
        [f"tests/{name}.py::test" for name in names[:2]]
        for names in (LONGEST, LOADS_BOTH_CORES[-2:], WAITS)
    )
    expected = [*heavy, *waiting, *long, *others]
    assert in_order([*others, *waiting[::-1], *long[::-1], *heavy[::-1]]) == expected


def test_one_process_at_a_time_runs_what_waits() -> None:
    queue = [WAITS[1], OTHER]
    waits, has_waited = {WAITS[0]: {"a": True, "b": False}}, {WAITS[0]: {"a": True, "b": True}}
    assert next_of(queue, [{HEAVY: {"a": False}}, has_waited]) == WAITS[1]
    assert next_of(queue, [{HEAVY: {"a": False}}, has_waited | waits]) == OTHER
    assert next_of(queue[:1], [waits]) == WAITS[1]


class Process:
    """What pytest-xdist's scheduler knows of a process; it keeps the tests that it is given."""

    shutting_down = False
    gateway = SimpleNamespace(id="a process")

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.given += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_process_takes_what_waits_when_no_other_one_has_it() -> None:
    groups = [WAITS[0], WAITS[1], OTHER, "policy/test_config", "policy/test_ranks"]
    tests = [f"tests/{group}.py::test_{number}" for group in groups for number in range(3)]
    asked: Any = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(option=asked, getvalue=lambda _: ["popen"] * 2)
    scheduler = SlowestFirst(config, Producer("", enabled=False))
    processes: list[Any] = [Process(), Process()]
    for one in processes:
        scheduler.add_node(one)
        scheduler.add_node_collection(one, tests)
    scheduler.schedule()
    first, second = processes
    assert (first.given, second.given) == ([0, 1, 2], [6, 7, 8])
    for test in (6, 7, 8):
        scheduler.mark_test_complete(second, test)
    # The first one still has tests that wait.
    assert second.given == [6, 7, 8, 9, 10, 11]
    scheduler.mark_test_complete(first, 0)
    assert first.given == [0, 1, 2, 3, 4, 5]


def test_the_undisturbed_pipeline_runs_in_one_process() -> None:
    # A session's fixture is made anew in each process of pytest-xdist.
    deployment = TESTS / "flows/deployment"
    # Its `undisturbed` is another fixture.
    groups = [
        group_of(f"tests/{file.relative_to(TESTS)}")
        for file in (TESTS / "flows").rglob("test_*.py")
        if deployment not in file.parents and re.search(r"\bundisturbed: str", file.read_text())
    ]
    assert len(groups) > 1
    assert set(groups) == {PIPELINES}


def test_the_files_that_use_the_processs_own_ray_run_one_after_the_other() -> None:
    files = [file for file in TESTS.rglob("test_*.py") if file != Path(__file__)]
    sharing = [file for file in files if "process_ray" in file.read_text()]
    assert len(sharing) > 1
    assert {group_of(str(file.relative_to(TESTS))) for file in sharing} == {RAY}
