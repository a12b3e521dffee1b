"""The parameters of a run that is continued with some flags only, or with none."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from evertrain_flows.cli import run_pipeline as pipeline
from evertrain_flows.cli.app import main
from evertrain_flows.defaults import tracking_uri_of
from evertrain_flows.parameters import RetrainParameters
from tests.ranks.without_ray import stages_without_ray
from train_core.storage.coordination.stop_request import stop_request
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt, create_run

Begin = Callable[..., int]
BEGUN = (
    *("--epochs", "4", "--batch-size", "64", "--num-shards", "4", "--num-workers", "2,4"),
    *("--cpus-per-worker", "0.4"),
    *("--tracking-uri", "", "--settings", '{"width": 8}'),
    *("--runtime-env", '{"working_dir": "code", "env_vars": {"TOKEN": "hunter2"}}'),
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


@pytest.fixture
def begin(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """`evertrain retrain --run run …`, whose driver ends before it trains: its exit code."""

    def prepare(parameters: RetrainParameters, **_: Any) -> None:
        driver = stages_without_ray(parameters.request())
        try:
            driver.prepare()
        finally:
            driver.close("KILLED")

    monkeypatch.setattr(pipeline, "run_pipeline", prepare)

    def begin(*flags: str) -> int:
        return main(["retrain", "--run", "run", "--storage", folder.storage, *flags])

    return begin


def asked(folder: RunFolder) -> RetrainParameters:
    return RetrainParameters.of_run(folder)


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workload", "nowhere:Model"], "workload 'nowhere:Model' cannot be imported"),
        (["--monitor", "validation/beauty"], "'validation/beauty' is not measured: Digits gives"),
        (["--num-workers", "64"], "64 workers"),
        (["--infer-input", "/nowhere.parquet"], "/nowhere.parquet"),
        (["--settings", '{"depth": 3}'], "depth: Extra inputs are not permitted, got 3"),
    ],
)
def test_what_only_the_driver_finds_out_is_one_line_and_leaves_no_run(
    folder: RunFolder,
    begin: Begin,
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert begin("--tracking-uri", "", *flags) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("evertrain: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not Path(folder.url).exists()


@pytest.mark.promise("resume-as-asked")
def test_a_run_goes_on_with_what_it_was_asked_last(folder: RunFolder, begin: Begin) -> None:
    assert begin(*BEGUN) == 0
    # Alone, neither would fit to the defaults.
    assert begin("--epochs", "8", "--checkpoint-every-s", "60") == 0
    assert begin("--checkpoint-every-epochs", "0") == 0
    assert begin() == 0
    now = asked(folder)
    assert (now.epochs, now.batch_size, now.checkpoint_every_s) == (8, 64, 60)
    assert (now.min_workers, now.num_workers) == (2, 4)
    assert now.tracking_uri == ""
    assert now.settings.items() >= {"width": 8, "weight_decay": 0.01}.items()
    assert folder.record().config.epochs == 4
    assert folder.store.names("asked") == ["0002.json", "0003.json"]


@pytest.mark.parametrize(
    ("flags", "workers"),
    [
        (["--num-workers", "1"], (0, 1)),
        (["--num-workers", "1,3"], (1, 3)),
        (["--min-workers", "3"], (3, 4)),
    ],
)
def test_a_number_of_workers_replaces_both(
    folder: RunFolder, begin: Begin, flags: list[str], workers: tuple[int, int]
) -> None:
    assert begin(*BEGUN) == 0
    assert begin(*flags) == 0
    assert (asked(folder).min_workers, asked(folder).num_workers) == workers


@pytest.mark.promise("secrets")
def test_secrets_are_not_recorded_and_code_is_found_from_anywhere(
    folder: RunFolder, begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert begin(*BEGUN) == 0
    assert begin("--epochs", "5") == 0
    for file in ("run.json", "asked/0002.json"):
        assert b"hunter2" not in folder.store.read(file)
    assert asked(folder).runtime_env == {"working_dir": str(tmp_path / "code")}


@pytest.mark.promise("no-silent-change")
def test_what_may_not_change_is_refused_and_not_noted(
    folder: RunFolder, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin(*BEGUN) == 0
    assert begin("--batch-size", "32", "--epochs", "9") == 2
    assert "batch_size: was 64, asked for 32" in capsys.readouterr().err
    assert begin("--num-workers", "5") == 2
    assert "has 4 shards, so at most 4 workers" in capsys.readouterr().err
    assert asked(folder).epochs == 4


def test_mlflow_is_where_the_run_has_it_unless_another_one_is_named(
    folder: RunFolder, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://environment")
    assert begin(*BEGUN) == 0
    assert tracking_uri_of(folder, None) == ""
    assert tracking_uri_of(folder, "http://another") == "http://another"
    other = RunFolder(folder.storage, "other")
    create_run(other, folder.record().model_copy(update={"name": "other", "pipeline": {}}))
    assert tracking_uri_of(other, None) == "http://environment"


def test_a_run_that_is_driven_here_is_refused_before_anything_is_started_or_asked(
    folder: RunFolder,
    begin: Begin,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("something was started")

    assert begin(*BEGUN) == 0
    monkeypatch.undo()
    monkeypatch.setattr(pipeline, "open_session", start)
    held = begin_attempt(folder)
    for command in ("resume", "delete"):
        assert main(["runs", command, "run", "--storage", folder.storage]) == 2
        assert "run 'run' is being driven by process" in capsys.readouterr().err
    held.release()
    # Nobody is there to agree.
    with patch("sys.stdin", StringIO()):
        assert main(["runs", "delete", "run", "--storage", folder.storage]) == 2
    assert "nothing was deleted; with --yes the command does not ask" in capsys.readouterr().err
    assert folder.exists()


@pytest.mark.promise("runs-stop")
def test_stop_asks_whoever_drives_the_run_and_is_refused_if_nobody_does(
    folder: RunFolder, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin(*BEGUN) == 0
    held = begin_attempt(folder)
    assert main(["runs", "stop", "run", "--storage", folder.storage]) == 0
    request = stop_request(folder.store, held.attempt)
    assert request is not None
    assert request.reason.startswith("evertrain runs stop")
    held.release()
    assert main(["runs", "stop", "run", "--storage", folder.storage]) == 2
    assert "no process drives run 'run'" in capsys.readouterr().err
