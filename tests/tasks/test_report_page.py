"""The report's page: four digits, both splits, the data, and last night's figures beside them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evertrain_tasks.report.artifacts import artifact_key, checkpoint_rows
from evertrain_tasks.report.page import compared_with, difference, metrics_table, report_markdown
from tests.flows.test_results import PREDICTIONS, REPORT, checkpoint, evaluated
from tests.storage.samples import record
from train_core.results import Report
from train_core.storage.records.names import CURVES_PNG, REPORT_JSON
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run

BEGAN = datetime(2026, 11, 23, 3, tzinfo=UTC)


def report(run: str, validation: float | None, test: float) -> Report:
    return REPORT.model_copy(
        update={
            "run": run,
            "evaluations": [
                evaluated(10, 0.1),
                evaluated(20, validation),
                evaluated(20, test, "test"),
            ],
            "best": checkpoint(20),
            "predictions": PREDICTIONS,
        }
    )


def finish(storage: Path, outcome: Report, hours: int, measured_on: str = "") -> RunFolder:
    folder = RunFolder(str(storage), outcome.run)
    made = record(outcome.run, workload="clinic:Clinic")
    datasets = {
        "train": {"samples": 150 + hours, "digest": f"0123456789abcdef{hours}"},
        "validation": {"samples": 40, "digest": measured_on or None},
        "test": {"samples": 40, "digest": None},
    }
    created_at = (BEGAN + timedelta(hours=hours)).isoformat()
    create_run(folder, made.model_copy(update={"created_at": created_at, "datasets": datasets}))
    folder.store.write(REPORT_JSON, outcome.model_dump_json().encode())
    folder.store.write(CURVES_PNG, os.urandom(8))
    return folder


@pytest.mark.promise("report-page")
def test_the_page_shows_both_splits_and_last_nights_figures_beside_them(tmp_path: Path) -> None:
    finish(tmp_path, report("first", 0.1, 0.1), 0)
    finish(tmp_path, report("last-night", 0.75, 0.5), 24)
    tonight = report("tonight", 0.8123456, 0.4)
    folder = finish(tmp_path, tonight, 48)
    finish(tmp_path, report("later", 0.9, 0.9), 72)
    page = report_markdown(tonight, folder)
    assert (
        "| metric | validation | validation before | validation difference "
        "| test | test before | test difference |"
    ) in page
    assert "| accuracy | 0.8123 | 0.7500 | +0.0623 | 0.4000 | 0.5000 | -0.1000 |" in page
    assert "Before: run `last-night`" in page
    assert "| train | 198 | 0123456789ab |" in page
    assert "| test | 40 | - |" in page
    assert "data:image/png;base64," in page


def test_figures_that_were_measured_on_other_data_are_told(tmp_path: Path) -> None:
    finish(tmp_path, report("last-night", 0.75, 0.5), 24, "few")
    tonight = report("tonight", 0.8, 0.5)
    page = report_markdown(tonight, finish(tmp_path, tonight, 48, "more"))
    other = "validation had as many samples, but others"
    assert f"run `last-night`, on other data ({other}): not all of" in page
    again = report("again", 0.8, 0.5)
    page = report_markdown(again, finish(tmp_path, again, 72, "more"))
    assert "run `tonight`" in page
    assert "on other data" not in page


@pytest.mark.parametrize(
    ("then", "now", "are_others"),
    [
        ({"samples": 40}, {"samples": 64}, True),
        ({"samples": 40}, {"samples": 40}, False),
        ({"samples": 40}, {"samples": 40, "digest": "a"}, False),
        ({"samples": 40, "digest": "b"}, {"samples": 40, "digest": "a"}, True),
        ({"samples": 40, "digest": "a"}, {"samples": 40, "digest": "a"}, False),
    ],
)
def test_data_are_others_by_their_samples_or_by_both_digests(
    then: dict[str, Any], now: dict[str, Any], are_others: bool
) -> None:
    sentence = compared_with(report("a", 0.5, 0.5), {"test": then}, {"test": now})
    assert ("on other data" in sentence) == are_others


def test_the_number_of_samples_is_told_where_it_was_another() -> None:
    sentence = compared_with(
        report("a", 0.5, 0.5), {"test": {"samples": 40}}, {"test": {"samples": 64}}
    )
    assert "on other data (test had 40 samples): not all of" in sentence


def test_a_function_without_a_checkpoint_has_its_last_report_on_the_page() -> None:
    trained = REPORT.train.model_copy(update={"metrics": {"loss": 0.25}})
    none = {"evaluations": [], "best": None, "train": trained}
    assert "| loss | 0.2500 |" in metrics_table(REPORT.model_copy(update=none), None)


def test_a_first_night_has_nothing_beside_it(tmp_path: Path) -> None:
    first = report("first", 0.8, 0.4)
    page = report_markdown(first, finish(tmp_path, first, 0))
    assert "| metric | validation | test |" in page
    assert "| accuracy | 0.8000 | 0.4000 |" in page
    assert "before" not in page.lower()


def test_a_report_of_another_version_is_no_night_before(tmp_path: Path) -> None:
    finish(tmp_path, report("older", 0.1, 0.1), 0)
    strange = finish(tmp_path, report("strange", 0.2, 0.2), 24)
    strange.store.write(REPORT_JSON, b'{"format": 1, "something": "else"}')
    tonight = report("tonight", 0.8, 0.4)
    assert "Before: run `older`" in report_markdown(tonight, finish(tmp_path, tonight, 48))


def test_what_one_of_two_runs_did_not_measure_has_no_difference() -> None:
    shown = metrics_table(report("a", None, 0.4), report("b", 0.5, 0.4))
    assert "| accuracy | - | 0.5000 | - | 0.4000 | 0.4000 | +0.0000 |" in shown


@pytest.mark.parametrize(
    ("value", "was", "shown"),
    [
        (0.5, 0.25, "+0.2500"),
        (0.25, 0.5, "-0.2500"),
        (1.00001, 1.0, "+1.0e-05"),
        (None, 0.5, "-"),
        (0.5, None, "-"),
        (float("nan"), 0.5, "+nan"),
    ],
)
def test_a_difference_has_its_sign(value: float | None, was: float | None, shown: str) -> None:
    assert difference(value, was) == shown


def test_metrics_of_checkpoints_have_four_digits() -> None:
    (row, _) = checkpoint_rows(report("a", 0.8123456, 0.4))
    assert row["validation/accuracy"] == "0.1000"


def test_a_key_is_one_that_prefect_allows() -> None:
    assert artifact_key("Clinic, nightly!", "ray-job") == "clinic-nightly-ray-job"
