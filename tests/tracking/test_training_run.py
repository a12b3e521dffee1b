"""The training is in the MLflow run that people tick; an earlier version's stays where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag

from tests.tracking.delivery.test_mirror import expected, mirror_once, points, stages
from tests.tracking.following import mirrored
from tests.tracking.run_builder import RunBuilder, entry
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.run_folder import RunFolder
from train_core.tracking.delivery.catch_up import catch_up


@pytest.mark.promise("mlflow-compare")
def test_the_rows_of_two_retrainings_have_their_curves(tmp_path: Path, tracking_uri: str) -> None:
    for number, name in enumerate(("first", "second"), start=1):
        run = RunBuilder(RunFolder(str(tmp_path / "runs"), name))
        run.commit(range(1, 10 * number), finished=True)
        mirror_once(run, tracking_uri)
    client = MlflowClient(tracking_uri)
    # As the table of runs lists them; nested runs are folded into their parents' rows.
    rows = {run.info.run_name: run for run in client.search_runs(["1"])}
    assert rows.keys() == {"first", "second"}
    for name, last in (("first", 9), ("second", 19)):
        history = client.get_metric_history(rows[name].info.run_id, "train/loss")
        assert [point.step for point in history] == list(range(1, last + 1))


def begun_by_an_earlier_version(run: RunBuilder, uri: str, until: int) -> dict[str, str]:
    """The MLflow runs as earlier versions made them, with the steps before `until`."""
    client = MlflowClient(uri)
    experiment_id = client.create_experiment("tests", Path(run.folder.storage).as_uri())
    identity = digest_of(run.folder.store.read("run.json"))
    ids: dict[str, str] = {}
    for stage, name in (("pipeline", run.folder.name), ("train", "train")):
        tags = {
            "evertrain.id": identity,
            "evertrain.run": run.folder.url,
            "evertrain.stage": stage,
        }
        if ids:
            tags["mlflow.parentRunId"] = ids["pipeline"]
        ids[stage] = client.create_run(experiment_id, tags=tags, run_name=name).info.run_id
    metrics = [
        Metric(key, float("nan") if value is None else value, round(found.time * 1000), found.step)
        for found in map(entry, range(1, until))
        for key, value in (found.metrics | found.rates).items()
    ]
    position = [RunTag("evertrain.mirrored", f"{until - 1}+1")]
    client.log_batch(ids["train"], metrics=metrics, tags=position)
    return ids


@pytest.mark.promise("mlflow-same-runs")
def test_a_run_of_an_earlier_version_goes_on_in_its_nested_run(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.commit(range(1, 30))
    run.change_record(pipeline={"experiment": "tests", "mirror_weights": "none"})
    ids = begun_by_an_earlier_version(run, tracking_uri, until=30)
    run.new_attempt()
    best = run.commit(range(30, 50), finished=True)
    run.outcome(best, {"accuracy": 0.75})
    mirrored(run.folder, tracking_uri)
    run.lease.release()
    catch_up(run.folder, tracking_uri)
    found = stages(tracking_uri)
    assert ids.items() <= {stage: one.info.run_id for stage, one in found.items()}.items()
    assert points(tracking_uri, "train") == expected(range(1, 50))
    assert found["train"].info.status == "FINISHED"
    assert points(tracking_uri, "pipeline") == {
        ("validation/accuracy", 49): 1,
        ("test/accuracy", 49): 1,
    }


def test_a_run_that_was_extended_and_ends_otherwise_shows_both_ends(
    run: RunBuilder, tracking_uri: str
) -> None:
    ends = []
    for steps, accuracy in ((range(1, 10), 0.5), (range(10, 20), 0.75)):
        best = run.commit(steps, finished=True, metrics={"validation/accuracy": accuracy})
        run.outcome(best, {"accuracy": 0.25})
        for _ in range(2):
            mirrored(run.folder, tracking_uri)
        ends.append(best)
    client, run_id = MlflowClient(tracking_uri), stages(tracking_uri)["pipeline"].info.run_id
    shown = client.get_metric_history(run_id, "best/validation/accuracy")
    assert [(point.step, point.value) for point in shown] == [(0, 0.5), (19, 0.75)]
    (unchanged,) = client.get_metric_history(run_id, "test/accuracy")
    assert (unchanged.step, unchanged.value) == (0, 0.25)
