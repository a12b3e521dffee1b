"""A whole pipeline on a folder to which files come meanwhile: the record is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.conftest import Evertrain
from tests.flows.mlflow_side import at_home, runs_in
from tests.rank.alone import run as train_alone
from tests.rank.digests import digest_of_training
from tests.rank.growing import write_splits
from train_core.results import Report
from train_core.storage.coordination.lease import newest_attempt
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.timeout(300)


@pytest.mark.slow
@pytest.mark.promise("sources")
def test_files_that_come_after_prepare_change_neither_the_numbers_nor_the_record(
    evertrain: Evertrain, home: Path, tmp_path: Path
) -> None:
    data = {name: str(tmp_path / name) for name in ("still", "growing")}
    for url in data.values():
        write_splits(url)
    done = evertrain(
        "retrain",
        "--run",
        "grown",
        "--workload",
        "tests.rank.growing:Overnight",
        "--settings",
        json.dumps({"data": data["growing"]}),
        "--gpus-per-worker",
        "0",
        "--batch-size",
        "32",
        "--eval-batch-size",
        "16",
    )
    assert done.returncode == 0, done.stderr
    files = sorted(file.name for file in Path(data["growing"], "test").iterdir())
    assert files == ["day-1.npy", "day-2.npy", "day-3.npy"]

    folder = RunFolder(str(home / ".evertrain/runs"), "grown")
    record = folder.record()
    assert {name: one.num_files for name, one in record.sources.items()} == {
        "train": 1,
        "validation": 1,
        "test": 1,
    }
    alone = RunFolder(str(tmp_path / "alone"), "alone")
    workload = "tests.rank.growing:Named"
    train_alone(alone, workload=workload, settings={"data": data["still"]})
    assert digest_of_training(folder) == digest_of_training(alone)
    report = Report.model_validate(folder.report())
    (tested,) = (one for one in report.evaluations if one.split == "test")
    assert tested.num_samples == report.predictions.num_rows == record.datasets["test"]["samples"]
    (parent,) = (
        one
        for one in runs_in(at_home(home), folder.url)
        if one.data.tags["evertrain.stage"] == "pipeline"
    )
    inputs = {one.dataset.name: one.dataset.digest for one in parent.inputs.dataset_inputs}
    assert inputs == {
        f"Overnight-{split}": one["digest"][:36] for split, one in record.datasets.items()
    }
    assert parent.data.params["settings.dropout"] == "0.2"
    assert parent.data.params["settings.data"] == data["growing"]


@pytest.mark.slow
def test_one_rank_with_other_data_ends_the_run_at_once_and_in_plain_words(
    evertrain: Evertrain, home: Path, tmp_path: Path
) -> None:
    write_splits(str(tmp_path))
    done = evertrain(
        "retrain",
        "--run",
        "apart",
        "--workload",
        "tests.rank.growing:OneRankElsewhere",
        "--settings",
        json.dumps({"data": str(tmp_path)}),
        "--gpus-per-worker",
        "0",
        "--num-workers",
        "2",
        "--cpus-per-worker",
        "0.5",
    )
    assert done.returncode == 2, done.stderr
    assert "the train split is not what run 'apart' was begun with: samples was 150, is 155" in (
        done.stderr
    )
    assert "Traceback" not in done.stderr
    folder = RunFolder(str(home / ".evertrain/runs"), "apart")
    assert newest_attempt(folder.store) == 1
