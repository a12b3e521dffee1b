"""Batch inferences of a run that has ended are shown in its MLflow run, at once or afterwards."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.tracking.conftest import MlflowServer
from tests.tracking.delivery.test_mirror import mirror_once, stages
from tests.tracking.following import following, tracker_of
from tests.tracking.run_builder import RunBuilder
from train_core.client.isolated import mirror_predictions
from train_core.errors import StageError, TrackingError
from train_core.results import CheckpointSummary, PredictionsResult
from train_core.tracking.afterwards import show_batch_inference
from train_core.tracking.delivery.catch_up import catch_up
from train_core.tracking.follow import tracked_run
from train_core.tracking.mlflow.runs import MlflowRuns
from train_core.tracking.refusals import Refusals
from train_core.tracking.show_results import show_predictions
from train_core.tracking.tracker import Stage

NIGHT = {"source": "s3://new/2026-11-23", "digest": "d" * 64}


def ended(run: RunBuilder, tracking_uri: str) -> CheckpointSummary:
    """The best checkpoint of a run that is over, and shown in MLflow."""
    best = run.commit(range(1, 30), finished=True)
    mirror_once(run, tracking_uri)
    run.lease.release()
    return best


def infer(tracking_uri: str) -> Run:
    return stages(tracking_uri)["infer"]


def shown(tracking_uri: str) -> tuple[str, set[str], dict[str, str]]:
    """The newest predictions' address, all that have a file, and the inputs."""
    run, client = infer(tracking_uri), MlflowClient(tracking_uri)
    names = {file.path for file in client.list_artifacts(run.info.run_id, "predictions")}
    inputs = {one.dataset.digest: one.dataset.source for one in run.inputs.dataset_inputs}
    return run.data.tags["evertrain.predictions"], names, inputs


def file_of(result: PredictionsResult) -> str:
    return f"predictions/{result.uri.rpartition('/')[2]}.json"


@pytest.mark.slow
def test_each_is_shown_once_and_the_newest_first_of_all(run: RunBuilder, tracking_uri: str) -> None:
    best = ended(run, tracking_uri)
    before = stages(tracking_uri)["pipeline"].info
    first, second = run.predict(best, "-a", **NIGHT), run.predict(best, "-b", **NIGHT)
    for result in (second, first, second):
        show_batch_inference(run.folder.url, result.uri, tracking_uri)
    inputs = {"d" * 36: json.dumps({"uri": NIGHT["source"]})}
    assert shown(tracking_uri) == (second.uri, {file_of(first), file_of(second)}, inputs)
    after = stages(tracking_uri)["pipeline"].info
    assert (after.status, after.end_time) == (before.status, before.end_time)
    assert infer(tracking_uri).info.status == "FINISHED"


@pytest.mark.promise("mirror")
def test_what_mlflow_missed_is_shown_by_who_mirrors_the_run(
    run: RunBuilder, tracking_uri: str
) -> None:
    best = ended(run, tracking_uri)
    results = [run.predict(best, suffix, **NIGHT) for suffix in ("-a", "-b")]
    for _ in range(2):
        catch_up(run.folder, tracking_uri)
        newest, names, _ = shown(tracking_uri)
        assert (newest, names) == (results[1].uri, {file_of(one) for one in results})
        assert infer(tracking_uri).data.tags["evertrain.num_rows"] == "7"


def test_a_checkpoint_that_was_pruned_since_hides_nothing(
    run: RunBuilder, tracking_uri: str
) -> None:
    best = ended(run, tracking_uri)
    result = run.predict(best, **NIGHT)
    run.folder.store.delete(f"checkpoints/{best.name}")
    show_batch_inference(run.folder.url, result.uri, tracking_uri)
    assert infer(tracking_uri).data.tags["evertrain.checkpoint"] == best.uri


@pytest.mark.slow
def test_a_run_that_mlflow_does_not_have_is_not_begun_there(
    run: RunBuilder, tracking_uri: str, tmp_path: Path
) -> None:
    result = run.predict(run.commit(range(1, 30), finished=True))
    with pytest.raises(TrackingError, match="does not have the run"):
        mirror_predictions(run.folder, result, tracking_uri)
    assert MlflowClient(tracking_uri).get_experiment_by_name("tests") is None
    with pytest.raises(TrackingError, match="there is no MLflow database"):
        mirror_predictions(run.folder, result, f"sqlite:///{tmp_path}/nowhere.db")


@pytest.mark.slow
def test_a_server_that_is_down_is_an_error_of_the_isolated_call(
    run: RunBuilder, server: MlflowServer
) -> None:
    result = run.predict(run.commit(range(1, 30), finished=True))
    with pytest.raises(StageError):
        mirror_predictions(run.folder, result, server.uri)


class Racing(MlflowRuns):
    """Creates the nested run only when another one has looked for it as well, and found none."""

    both = threading.Barrier(2)

    def _create(self, stage: Stage) -> Run:
        if stage == "infer":
            self.both.wait(60)
        return super()._create(stage)


def test_two_batch_inferences_at_once_make_one_nested_run(
    run: RunBuilder, tracking_uri: str
) -> None:
    best = ended(run, tracking_uri)
    results = [run.predict(best, suffix) for suffix in ("-00000001", "-00000002")]
    racing = []
    for _ in results:
        tracker = tracker_of(run.folder, tracking_uri)
        told = tracked_run(run.folder, run.folder.record())
        tracker.runs = Racing(tracking_uri, "tests", told, Refusals())
        racing.append(following(run.folder, tracker, is_live=False).shown)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(show_predictions, racing, results))
    # `stages` finds one run of each stage, or fails.
    names = shown(tracking_uri)[1]
    assert names == {f"predictions/{result.uri.rpartition('/')[2]}.json" for result in results}
    # Whoever deletes it gets another one with the next inference, and all share that.
    MlflowClient(tracking_uri).delete_run(infer(tracking_uri).info.run_id)
    for result in results:
        tracker = tracker_of(run.folder, tracking_uri)
        show_predictions(following(run.folder, tracker, is_live=False).shown, result)
    assert shown(tracking_uri)[1] == names
