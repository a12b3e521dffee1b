"""A report may fail or be killed anywhere: the newest checkpoint is the old one or the new one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.compat.reports.faulty_ranks import REPORTS, FaultyTask, drive, new_run
from tests.compat.reports.ranks import Given, Ranks, contents, write
from tests.marks import slow
from tests.storage.doubles.faulty_store import LOOK, LOOKS, FaultyStore
from train_core.errors import StorageError
from train_core.functions.task import FunctionTask, Report
from train_core.rank.checkpoint import journal_buffer
from train_core.storage.records.journal import read_segments
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt
from train_core.storage.verification.checkpoints import faults

ROOT = Path(__file__).parents[3]
END = REPORTS + 1
# What there is after each commit of the second attempt, and after what that makes superfluous. The
# second report has no folder.
STATES = [[1], [1, 3], [1, 3, 4], [3, 4], [3, 4, END]]
SURPLUS = [1, 3, 4, END]
"""What there is where only the deletion failed."""
EVERYWHERE = slice(None)
PARTS = 4
"""An attempt looks into its storage so often that a test of all looks would take minutes on S3."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tell_nothing` has it."""
    monkeypatch.setattr(journal_buffer, "_LIVE_EVERY_S", 1e6)


def check_whole(folder: RunFolder) -> list[int]:
    """Each checkpoint verifies, and its journal has each report up to it; which ones there are."""
    checkpoints = folder.checkpoints()
    for one in checkpoints:
        assert faults(folder, one) == []
        if one.manifest.reported:
            assert set(contents(folder, one).values()) == {f"{one.step}"}
        last = min(one.step, REPORTS)
        steps = [entry.step for entry in read_segments(folder.store, one.manifest.journal)]
        assert steps == list(range(1, last + 1))
    assert folder.damaged() == folder.quarantined() == {}
    return [one.step for one in checkpoints]


def check_goes_on(folder: RunFolder) -> None:
    """The next attempt makes each report that is not committed, and comes to the end."""
    before = check_whole(folder)
    if before[-1] != END:
        drive(folder)
    assert check_whole(folder)[-2:] == [REPORTS, END]


def failure_of(folder: RunFolder, task_type: Callable[..., FunctionTask]) -> str:
    """The error with which an attempt ends; empty: it comes to its end."""
    try:
        drive(folder, num_ranks=2, task_type=task_type)
    except StorageError as error:
        return str(error)
    return ""


def operations_of_an_attempt(storage: str, notes: Path, *, looks: bool) -> int:
    folder = new_run(storage, "undisturbed")
    store = FaultyStore(folder.url, notes / "undisturbed")
    drive(folder, num_ranks=2, task_type=partial(FaultyTask, notes=str(store.notes)))
    assert check_whole(folder) == STATES[-1]
    return sum(kind in LOOKS for kind in store.everything) if looks else len(store.operations)


@pytest.mark.promise("killed-save")
@pytest.mark.parametrize(
    ("looks", "done", "at"),
    [
        (False, False, EVERYWHERE),
        *(slow(False, True, slice(first, None, PARTS)) for first in range(PARTS)),
        *(slow(True, False, slice(first, None, PARTS)) for first in range(PARTS)),
    ],
    ids=[
        "refused",
        *(f"lost answer {first + 1} of {PARTS}" for first in range(PARTS)),
        *(f"look {first + 1} of {PARTS}" for first in range(PARTS)),
    ],
)
def test_a_report_whose_storage_fails_anywhere_leaves_the_old_state_or_the_new(
    storage_url: str, tmp_path: Path, looks: bool, done: bool, at: slice
) -> None:
    number = operations_of_an_attempt(storage_url, tmp_path, looks=looks)
    assert number > 10
    for op in range(1, number + 1)[at]:
        folder = new_run(storage_url, f"{op}")
        store = FaultyStore(folder.url, tmp_path / f"{op}")
        store.fail_at(op, kind=LOOK if looks else "", done=done)
        failure = failure_of(folder, partial(FaultyTask, notes=str(store.notes)))
        assert failure == "" or "the test has scheduled this" in failure
        assert check_whole(folder) in [*STATES, SURPLUS]
        check_goes_on(folder)


@pytest.mark.slow
@pytest.mark.promise("killed-save")
@pytest.mark.timeout(300)
def test_a_report_that_is_killed_anywhere_leaves_the_old_state_or_the_new(tmp_path: Path) -> None:
    storage, notes = tmp_path / "storage", tmp_path / "notes"
    subprocess.run(
        [sys.executable, "-m", "tests.compat.reports.faulty_ranks", str(storage), str(notes)],
        cwd=ROOT,
        check=True,
        timeout=250,
    )
    *killed, through = [
        RunFolder(str(storage), f"{number}") for number in range(1, len(list(notes.iterdir())) + 1)
    ]
    assert check_whole(through) == STATES[-1]
    seen = []
    for folder in killed:
        seen.append(STATES.index(check_whole(folder)))
        check_goes_on(folder)
    # The later it dies, the more is there.
    assert all(before <= after for before, after in pairwise(seen))
    assert set(seen) == set(range(len(STATES)))


def test_a_report_in_the_background_that_failed_raises_at_the_end(tmp_path: Path) -> None:
    folder = new_run(str(tmp_path / "storage"), "run")
    store = FaultyStore(folder.url, tmp_path / "notes")
    held = begin_attempt(folder)
    task_type = partial(FaultyTask, notes=str(store.notes))
    ranks = Ranks(folder, 1, attempt=held.attempt, task_type=task_type)
    store.fail_at(1, kind="put")
    try:
        for number in (2, 3):
            source = Given(write(tmp_path / f"{number}", text=f"{number}"))
            report = Report(number, {}, source)
            # One that has failed by the next report is not forgotten for it.
            wait([ranks.reporters[0].report(report, in_background=True)], 30)
        with pytest.raises(StorageError, match="the test has scheduled this"):
            ranks.reporters[0].end(4)
    finally:
        ranks.close()
        held.release()
    # Those after it are stored, and the function has not ended.
    assert [one.step for one in folder.checkpoints()] == [1, 3]
