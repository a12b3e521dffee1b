"""What a training function reports becomes checkpoints, metrics and an end of the run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
import torch
from mlflow import MlflowClient
from ray.train import Result

from evertrain_flows.databases import create_tracking_database
from tests import commands
from tests.compat.reports.ranks import entries
from train_core import TrainConfig, fit, infer, list_runs, open_run, verify_run
from train_core.errors import ConfigError, ResourceError, UserCodeError
from train_core.functions.init_folder import find_reported
from train_core.results import TrainResult
from train_core.storage.run_folder import Commit, RunFolder
from train_core.text.log_lines import warning_in

# Ray starts workers while a test runs; what is left is looked at when the driver ended.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.leaves]
FILES = {
    *("run.json", "live.json", ".validate_storage_marker", "checkpoint_manager_snapshot.json"),
}
FUNCTIONS = "tests.compat.functions.plain"


def run_function(
    storage: str,
    name: str,
    *,
    tracking_uri: str = "",
    on_log: Callable[[str], None] = print,
    **parameters: Any,
) -> tuple[RunFolder, TrainResult]:
    config = TrainConfig(**{"train_fn": f"{FUNCTIONS}:{name}", **parameters})
    result = fit(config, storage=storage, run="run", tracking_uri=tracking_uri, on_log=on_log)
    folder = RunFolder(storage, "run")
    assert not [one for one in verify_run(folder) if one.faults]
    return folder, result


def contents(folder: RunFolder, checkpoint: Commit) -> dict[str, bytes]:
    """The files that were reported, by their paths."""
    return {
        entry.name.removeprefix("files/"): folder.store.read(f"{checkpoint.key}/{entry.name}")
        for entry in checkpoint.manifest.files
    }


@pytest.mark.promise("own-training-function")
def test_a_function_saves_fails_and_resumes(tmp_path: Path) -> None:
    folder, result = run_function(
        str(tmp_path),
        "save_and_resume",
        train_loop_config={"num_epochs": 5, "fails_at": 1},
        max_failures=1,
        num_workers=2,
        monitor="loss",
        monitor_order="min",
    )
    assert result.stopped_by == "function_end"
    assert [entry.step for entry in entries(folder)] == [1, 2, 3, 4, 5]
    assert [entry.metrics["epoch"] for entry in entries(folder)] == [0, 1, 2, 3, 4]
    assert [one.step for one in result.checkpoints] == [3, 4, 5]
    assert {one.attempt for one in folder.checkpoints()} == {2}
    # Ray's own reader of its runs.
    of_ray = Result.from_path(folder.url)
    found = [metrics["epoch"] for _, metrics in of_ray.best_checkpoints or []]
    assert found == [2, 3, 4]
    assert of_ray.checkpoint
    with of_ray.checkpoint.as_directory() as place:
        assert torch.load(Path(place, "extra_state.pt")) == {"epoch": 4}


def test_an_error_of_the_function_is_shown_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="RuntimeError: Intentional error") as raised:
        run_function(
            str(tmp_path), "save_and_resume", train_loop_config={"num_epochs": 5, "fails_at": 0}
        )
    assert "functions/plain.py" in raised.value.traceback
    assert [one.step for one in RunFolder(str(tmp_path), "run").checkpoints()] == [1]


def test_a_trainer_is_run_as_its_factory_configures_it(tmp_path: Path) -> None:
    folder, result = run_function(
        str(tmp_path), "unused", train_fn="", trainer=f"{FUNCTIONS}:factory"
    )
    assert [entry.metrics["epoch"] for entry in entries(folder)] == [0, 1, 2, 3, 4, 5]
    record = folder.record().config
    assert (record.num_workers, record.max_failures) == (2, 1)
    assert (result.monitor, result.monitor_order) == ("loss", "min")
    # The loss falls with each epoch.
    assert [one.step for one in result.checkpoints] == [5, 6]
    assert {entry.by_rank.keys() == {"1"} for entry in entries(folder)} == {True}


def test_each_ranks_shard_is_in_the_checkpoint(storage_url: str) -> None:
    lines: list[str] = []
    folder, result = run_function(
        storage_url, "shard_of_each_rank", num_workers=2, on_log=lines.append
    )
    found = [contents(folder, folder.find(one.name)) for one in result.checkpoints]
    assert found == [
        {
            "model-rank=0.pt": f"0 of {number}".encode(),
            "model-rank=1.pt": f"1 of {number}".encode(),
            "common.json": b'{"by": 0}',
            "deep/er/0.bin": b"",
            "deep/er/1.bin": bytes(100),
        }
        for number in range(2)
    ]
    shown = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    (collision,) = [warning for line in shown if (warning := warning_in(line))]
    assert "files of one name (common.json)" in collision


def test_metrics_of_any_kind_are_journalled_and_mirrored_once(tmp_path: Path) -> None:
    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    create_tracking_database(tracking_uri)
    told: list[str] = []
    folder, result = run_function(
        f"{tmp_path}/runs",
        "metrics_only",
        tracking_uri=tracking_uri,
        monitor="accuracy",
        on_log=told.append,
    )
    assert any("there is no checkpoint, so none is the best by 'accuracy'" in one for one in told)
    assert result.checkpoints == result.finalists == []
    first, *_ = found = entries(folder)
    assert len(found) == 3
    assert first.metrics == {
        "loss": 1.5,
        "numpy": 0.0,
        "array": 0.0,
        "nan": None,
        "infinite": None,
        "eval/loss": 2.0,
        "eval/deep/er": 1.0,
        "flag": 1.0,
    }
    assert first.texts == {"text": "epoch 0"}
    client = MlflowClient(tracking_uri)
    (experiment,) = client.search_experiments(filter_string="name = 'evertrain'")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`evertrain.stage` = 'pipeline'")
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.5), (2, 1.25), (3, 1.0)]
    assert run.info.status == "FINISHED"


def test_a_function_reads_what_it_reported_and_what_it_returns_is_kept(tmp_path: Path) -> None:
    folder, result = run_function(
        str(tmp_path), "reads_what_it_reported", max_failures=1, monitor="step"
    )
    assert result.return_value == {"name": "checkpoint-2", "loss": 0.5, "at": [1, None]}
    run = open_run(folder.url)
    assert run.return_value == result.return_value
    assert repr(run.latest().metrics) == repr(
        {"step": 2, "loss": 0.5, "is_best": True, "eval/rows": 100, "eval/accuracy": 1.0}
    )
    best = run.best()
    assert best.get_metadata() == {"classes": ["cat", "dog"]}
    with pytest.raises(ConfigError, match="as the checkpoint is committed"):
        best.set_metadata({})
    assert (best.path, best.filesystem) == (f"{best.uri}/files", pyarrow.fs.LocalFileSystem())
    # What is chosen by, and mirrored, are numbers as before.
    (chosen,) = result.checkpoints
    assert repr(chosen.metrics["step"]) == repr(entries(folder)[0].metrics["step"]) == "2.0"


def test_what_a_function_returns_that_is_no_json_is_told(tmp_path: Path) -> None:
    lines: list[str] = []
    _, result = run_function(str(tmp_path), "returns_a_model", num_workers=2, on_log=lines.append)
    assert result.return_value is None
    (told,) = [warning for line in lines if (warning := warning_in(line))]
    assert "what the training function returned is not kept" in told
    assert "Linear" in told


def test_a_function_without_checkpoints_has_no_best_one(tmp_path: Path) -> None:
    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    create_tracking_database(tracking_uri)
    asked = ["--run", "run", "--train-fn", f"{FUNCTIONS}:metrics_only", "--monitor", "loss"]
    done = commands.succeed(
        [
            *(*commands.EVERTRAIN, "retrain", *asked),
            *("--storage", f"{tmp_path}/runs", "--tracking-uri", tracking_uri),
        ]
    )
    shown = [" ".join(one.split()) for one in done.stdout.splitlines()]
    assert [one for one in shown if one.startswith("best")] == [
        "best none, as no checkpoint was reported"
    ]
    assert any(one.startswith("last report loss 1.0000, ") for one in shown)
    folder = RunFolder(f"{tmp_path}/runs", "run")
    report = folder.report()
    assert report is not None
    assert (report["best"], report["train"]["checkpoints"]) == (None, [])
    assert not [one for one in verify_run(folder) if one.faults]
    (listed,) = list_runs(folder.storage)
    assert (listed.state, listed.best, listed.test) == ("finished", None, None)
    with pytest.raises(ConfigError, match="has no checkpoint: its training function"):
        infer("test", run="run", storage=folder.storage)
    with pytest.raises(ConfigError, match="run 'run' has reported no folder"):
        find_reported("run", folder.storage)
    client = MlflowClient(tracking_uri)
    (experiment,) = client.search_experiments(filter_string="name = 'evertrain'")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`evertrain.stage` = 'pipeline'")
    assert [name for name in run.data.metrics if "best" in name] == []
    assert "evertrain.best_checkpoint" not in run.data.tags
    assert "**Best**: none, as no checkpoint was reported" in run.data.tags["mlflow.note.content"]


def test_reports_in_the_background_are_committed_in_order(tmp_path: Path) -> None:
    folder, _ = run_function(str(tmp_path), "asynchronous", num_workers=2, keep_last=4)
    reported = folder.reported()
    assert [contents(folder, one) for one in reported] == [
        {"number.txt": str(number).encode()} for number in range(4)
    ]
    names = [one.manifest.reported.name for one in reported if one.manifest.reported]
    assert names == [f"own-name-{number}" for number in range(4)]


def test_what_lies_in_rays_storage_becomes_a_checkpoint(storage_url: str) -> None:
    lines: list[str] = []
    folder, _ = run_function(storage_url, "in_place", num_workers=2, on_log=lines.append)
    assert [one for one in lines if "files of one name" in one] == []
    reported = folder.reported()
    assert [contents(folder, one) for one in reported] == [
        {"weights.bin": b"in place"},
        {"weights.bin": b"uploaded"},
    ]
    # They were moved.
    assert set(folder.store.names()) <= {"checkpoints", "journal", "lease", "pins", *FILES}


def test_a_thread_reports_and_all_ranks_find_what_was_reported(tmp_path: Path) -> None:
    folder, _ = run_function(str(tmp_path), "from_a_thread", num_workers=2)
    assert entries(folder)[1].metrics == {"found": 1, "same": 1, "is_read": 1}


def test_a_run_begins_with_a_folder_of_another_one(storage_url: str) -> None:
    first, _ = run_function(storage_url, "save_and_resume", train_loop_config={"num_epochs": 2})
    config = TrainConfig(
        train_fn=f"{FUNCTIONS}:save_and_resume",
        train_loop_config={"num_epochs": 5},
        init_from="run/step-00000001-a0001",
    )
    fit(config, storage=storage_url, run="second")
    second = RunFolder(storage_url, "second")
    assert [entry.metrics["epoch"] for entry in entries(second)] == [1, 2, 3, 4]
    assert [entry.step for entry in entries(second)] == [1, 2, 3, 4]
    origin = second.record().origin
    assert origin is not None
    assert origin.digest == first.checkpoints()[0].digest


def test_a_damaged_folder_is_quarantined_and_the_one_before_is_resumed(tmp_path: Path) -> None:
    config = {"num_epochs": 4, "fails_at": 2}
    with pytest.raises(UserCodeError):
        run_function(str(tmp_path), "save_and_resume", train_loop_config=config)
    folder = RunFolder(str(tmp_path), "run")
    newest = folder.newest()
    assert newest is not None
    folder.store.write(f"{newest.key}/files/model.pt", b"damaged")
    config = {"num_epochs": 4}
    again = TrainConfig(train_fn=f"{FUNCTIONS}:save_and_resume", train_loop_config=config)
    fit(again, storage=str(tmp_path), run="run")
    assert folder.quarantined().keys() == {str(newest.name)}
    assert [entry.metrics["epoch"] for entry in entries(folder)] == [0, 1, 2, 3]


def test_the_ranks_share_a_dataset_of_ray_data(tmp_path: Path) -> None:
    folder, _ = run_function(str(tmp_path), "", train_fn="", trainer=f"{FUNCTIONS}:with_a_dataset")
    (entry,) = entries(folder)
    assert entry.metrics["seen"] == entry.by_rank["1"]["seen"] == 50


@pytest.mark.promise("room-for-ray-data")
@pytest.mark.parametrize("where", ["this machine", "the cluster"])
def test_a_dataset_that_less_than_a_cpu_is_left_for_is_refused(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    asked = {"train_fn": "", "trainer": f"{FUNCTIONS}:with_a_dataset_and_half_a_cpu"}
    if where == "the cluster":
        asked["ray_address"] = request.getfixturevalue("ray_address")
    told = f"each leave no node the CPU that Ray Data needs to read the trainer's datasets: {where}"
    with pytest.raises(ResourceError, match=told):
        run_function(str(tmp_path), "", **asked)
    assert not RunFolder(str(tmp_path), "run").exists()


def test_a_validation_function_ranks_checkpoints_and_keeps_what_it_has_not_measured(
    tmp_path: Path,
) -> None:
    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    create_tracking_database(tracking_uri)
    folder, result = run_function(
        f"{tmp_path}/runs",
        "",
        train_fn="",
        trainer=f"{FUNCTIONS}:with_a_validation",
        tracking_uri=tracking_uri,
    )
    # The best two by the validation, and the newest.
    measured = {one.step: one.metrics["accuracy"] for one in result.checkpoints}
    assert measured == pytest.approx({1: 1.01, 2: 0.91, 4: 0.71})
    best = open_run(folder.url).best()
    assert (best.step, best.metrics["accuracy"]) == (1, pytest.approx(1.01))
    client = MlflowClient(tracking_uri)
    (experiment,) = client.search_experiments(filter_string="name = 'evertrain'")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`evertrain.stage` = 'evaluate'")
    history = client.get_metric_history(run.info.run_id, "validation/accuracy")
    assert [point.step for point in history] == [1, 2, 3, 4]


def test_no_report_deletes_what_the_run_or_the_function_still_needs(tmp_path: Path) -> None:
    # The workers have another working directory, where the relative path leads elsewhere.
    folder, _ = run_function(os.path.relpath(tmp_path), "reports_what_it_was_given")
    reported = folder.reported()
    numbers = [contents(folder, one)["number.txt"] for one in reported]
    assert numbers == [b"0", b"1", b"1"]
    assert entries(folder)[-1].texts == {"kept": "1"}
