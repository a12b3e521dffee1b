"""Validation functions, on a real Ray: what awaits one is measured, by any driver of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from evertrain_flows.databases import create_tracking_database
from tests.compat.reports.ranks import Ranks, write
from train_core import TrainConfig, fit
from train_core.errors import StoppedError, UserCodeError
from train_core.functions.validations import Validations
from train_core.storage.evaluations import committed_evaluations
from train_core.storage.run_folder import RunFolder
from train_core.timing import FunctionTiming

pytestmark = pytest.mark.timeout(240)
FUNCTIONS = "tests.compat.functions.plain"
DEFAULT = {"fn_kwargs": None, "timeout_s": None}
QUICK = FunctionTiming(validation_poll_s=0.05)


def of(folder: RunFolder, trainer: str = "with_a_validation") -> Validations:
    return Validations(folder, TrainConfig(trainer=f"{FUNCTIONS}:{trainer}"), QUICK)


def nothing() -> None:
    """Nobody wants the training to end."""


def report(ranks: Ranks, place: Path, requested: dict[str, Any] | None) -> None:
    number = ranks.number
    folder = write(place / f"{number}", **{"number.txt": f"{number}"})
    ranks.report([folder], {"number": number}, validation=requested)


def measured(folder: RunFolder) -> dict[int, dict[str, float | None] | None]:
    return {one.step: one.validation for one in folder.checkpoints()}


@pytest.mark.usefixtures("process_ray")
@pytest.mark.parametrize("storage_url", ["local"], indirect=True)
def test_what_an_attempt_that_died_has_requested_is_measured_once(
    folder: RunFolder,
    start: Callable[..., Ranks],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ranks = start(1, keep_last=9)
    for requested in (
        DEFAULT,
        None,
        {"fn_kwargs": {"bonus": 0.5}, "timeout_s": None},
        {"fn_kwargs": {"seconds": 600}, "timeout_s": 0.2},
        {"fn_kwargs": {"fails": True}, "timeout_s": None},
    ):
        report(ranks, tmp_path, requested)
    ranks.close()
    for _ in range(2):
        validations = of(folder)
        with validations.running():
            validations.finish(nothing)
    assert measured(folder) == {
        1: {"accuracy": pytest.approx(1.01)},
        2: None,
        3: {"accuracy": pytest.approx(1.3)},
        # They have failed: nobody waits for them any more.
        4: {},
        5: {},
    }
    assert [one.checkpoint.step for one in committed_evaluations(folder)] == [1, 3, 4, 5]
    warnings = [one.message for one in caplog.records if one.levelname == "WARNING"]
    failed = "the validation of step-{:08d}-a0001 failed: {}".format
    assert warnings == [
        failed(4, "TimeoutError: it took longer than timeout_s (0.2 s)"),
        failed(5, "RuntimeError: the checkpoint cannot be measured"),
    ]


@pytest.mark.usefixtures("process_ray")
@pytest.mark.parametrize("storage_url", ["local"], indirect=True)
def test_one_that_is_broken_off_is_awaited_still(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(1)
    begun = tmp_path / "begun"
    report(ranks, tmp_path, {"fn_kwargs": {"begun": str(begun), "seconds": 600}, "timeout_s": None})

    def stop() -> None:
        if begun.exists():
            raise StoppedError("run", 1)

    validations = of(folder)
    with pytest.raises(StoppedError), validations.running():
        validations.finish(stop)
    (checkpoint,) = folder.checkpoints()
    assert checkpoint.awaits_validation


@pytest.mark.parametrize("storage_url", ["local"], indirect=True)
def test_nobody_waits_for_a_validation_function_that_there_is_no_more(
    folder: RunFolder,
    start: Callable[..., Ranks],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    report(start(1), tmp_path, DEFAULT)
    validations = Validations(folder, TrainConfig(train_fn=f"{FUNCTIONS}:metrics_only"), QUICK)
    with validations.running():
        validations.finish(nothing)
    assert measured(folder) == {1: {}}
    assert "there is no validation function" in caplog.text


@pytest.mark.slow
def test_a_validation_that_a_failure_has_broken_off_is_made_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERTRAIN_TEST_SCRATCH", str(tmp_path))
    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    create_tracking_database(tracking_uri)
    config = TrainConfig(trainer=f"{FUNCTIONS}:with_a_validation_that_waits")
    train = partial(
        fit, config, storage=str(tmp_path / "runs"), run="run", tracking_uri=tracking_uri
    )
    with pytest.raises(UserCodeError, match="the first attempt fails"):
        train()
    folder = RunFolder(str(tmp_path / "runs"), "run")
    assert measured(folder) == {1: None, 2: None}
    (tmp_path / "go-on").touch()
    begun = time.monotonic()
    train()
    assert time.monotonic() - begun < 120
    found = {one.step: one.validation for one in folder.checkpoints() if one.manifest.reported}
    assert found == {number: {"accuracy": 1.0} for number in (1, 2, 3)}
    client = MlflowClient(tracking_uri)
    (experiment,) = client.search_experiments(filter_string="name = 'evertrain'")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`evertrain.stage` = 'evaluate'")
    history = client.get_metric_history(run.info.run_id, "validation/accuracy")
    assert [point.step for point in history] == [1, 2, 3]


@pytest.mark.slow
def test_a_validation_that_no_trainer_has_is_refused_before_anything_is_stored(
    tmp_path: Path,
) -> None:
    config = TrainConfig(train_fn=f"{FUNCTIONS}:asks_for_validation")
    with pytest.raises(UserCodeError, match="the trainer has no validation_config"):
        fit(config, storage=str(tmp_path), run="run")
    assert RunFolder(str(tmp_path), "run").checkpoints() == []
