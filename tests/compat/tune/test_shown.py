"""Where a search is seen: in MLflow, in the list of runs, and as the pipeline of its best trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evertrain_flows.cli.app import main
from evertrain_flows.databases import create_tracking_database
from evertrain_flows.search import retrain_best
from train_core import list_runs
from train_core.errors import ConfigError
from train_core.results import Report

pytest.importorskip("ray.tune")

from ray import tune


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("tune-shown", "tune-best")
def test_mlflow_nests_the_trials_and_the_best_goes_on_to_the_gate(
    search: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow.tracking import MlflowClient

    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    create_tracking_database(tracking_uri)
    results = search(
        {"settings.score": tune.grid_search([1, 3])},
        tune_config={"metric": "validation/score", "mode": "max"},
        epochs=2,
        tracking_uri=tracking_uri,
    )
    assert not results.errors
    client = MlflowClient(tracking_uri)
    experiment = client.get_experiment_by_name("evertrain")
    found = client.search_runs([experiment.experiment_id])
    (parent,) = [one for one in found if one.data.tags["evertrain.stage"] == "search"]
    trials = [one for one in found if one.data.tags["evertrain.stage"] == "pipeline"]
    assert len(found) == 3
    assert {one.data.tags["mlflow.parentRunId"] for one in trials} == {parent.info.run_id}
    assert {one.data.metrics["validation/score"] for one in trials} == {1, 3}
    # The list has one line for them.
    storage = str(tmp_path / "runs")
    names = [one.run for one in list_runs(storage)]
    (name,) = {one.search for one in list_runs(storage)}
    assert main(["runs", "list", "--storage", storage]) == 0
    shown = capsys.readouterr().out
    assert name in shown
    assert "2 runs: 2 finished" in " ".join(shown.split())
    assert names[0] not in shown
    # By its results, or by its name.
    report = retrain_best(results, tracking_uri=tracking_uri, registered_model="searched")
    assert isinstance(report, Report)
    best = results.get_best_result()
    assert report.run == Path(best.metrics["evertrain/run"]).name
    assert report.gate is not None
    assert report.gate.status == "became champion"
    assert report.predictions is not None
    again = retrain_best(name, storage=storage, tracking_uri=tracking_uri)
    assert isinstance(again, Report)
    assert again.run == report.run
    with pytest.raises(ConfigError, match="there is no search 'none'"):
        retrain_best("none", storage=storage)
