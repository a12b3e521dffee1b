"""Which run `make demo` makes or goes on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertrain_flows.cli.commands.retrain import demo_parameters
from tests.flows.test_results import REPORT
from tests.storage.samples import record
from train_core.storage.records.names import REPORT_JSON
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt, create_run


def create(storage: Path, run: str, *, is_finished: bool) -> None:
    folder = RunFolder(str(storage), run)
    create_run(folder, record(run))
    if is_finished:
        folder.store.write(REPORT_JSON, REPORT.model_dump_json().encode())


def demo(storage: Path) -> str | None:
    return demo_parameters(str(storage)).run


@pytest.mark.promise("demo-goes-on")
def test_a_demo_that_has_no_report_is_continued_and_another_one_followed(tmp_path: Path) -> None:
    assert demo(tmp_path) == "demo-001"
    create(tmp_path, "demo-001", is_finished=False)
    create(tmp_path, "digits-1", is_finished=True)
    assert demo(tmp_path) == "demo-001"
    create(tmp_path, "demo-009", is_finished=True)
    assert demo(tmp_path) == "demo-010"


@pytest.mark.promise("demo-goes-on")
def test_what_was_killed_before_it_had_a_record_begins_again(tmp_path: Path) -> None:
    begin_attempt(RunFolder(str(tmp_path), "demo-003")).release()
    assert demo(tmp_path) == "demo-003"
