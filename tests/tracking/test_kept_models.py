"""Each kept checkpoint is a LoggedModel: MLflow ranks them as the pipeline does."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.exceptions import MlflowException

from tests.tracking.delivery.test_mirror import mirror_once, points, stages
from tests.tracking.following import mirrored, mlflow_at, register
from tests.tracking.run_builder import RunBuilder
from tests.tracking.test_models import log_best
from train_core.client.runs import prune_run
from train_core.config import TrainConfig
from train_core.loading import load_workload
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.policy.checkpoints.selection import Candidate, ranked
from train_core.policy.end_status import EndStatus
from train_core.storage.coordination.pins import valid_pins
from train_core.storage.run_folder import RunFolder
from train_core.tracking.delivery.catch_up import catch_up
from train_core.tracking.delivery.mirror import Mirror

DATA = {
    "train": {"samples": 100, "digest": "a" * 64},
    "validation": {"samples": 20, "digest": "b" * 64},
    "test": {"samples": 10, "digest": None},
}


def models(uri: str) -> list[LoggedModel]:
    """As a user asks for them; the best by the monitored metric first."""
    with mlflow_at(uri):
        found = mlflow.search_logged_models(
            experiment_ids=["1"],
            order_by=[
                {
                    "field_name": "metrics.validation/accuracy",
                    "ascending": False,
                    "dataset_name": "Digits-validation",
                    "dataset_digest": "b" * 36,
                }
            ],
            output_format="list",
        )
    return list(found)


def steps(found: list[LoggedModel]) -> list[int]:
    return [int(model.params["step"]) for model in found]


def module(run: RunBuilder) -> torch.nn.Module:
    config = run.folder.record().config
    return load_workload(config.workload, config.settings).model()


@pytest.mark.promise("kept-models")
def test_mlflow_ranks_the_kept_checkpoints_as_the_pipeline_does(
    run: RunBuilder, tracking_uri: str
) -> None:
    # The recorded data are none of Digits', so that no model could be made to serve.
    run.change_record(datasets=DATA, pipeline={"experiment": "tests", "mirror_weights": "none"})
    measured = {10: 0.5, 20: 0.75, 30: None, 40: 0.75, 50: 0.625}
    kept = [
        run.commit(
            range(step - 9, step + 1),
            finished=step == 50,
            metrics={"validation/accuracy": accuracy},
            model=module(run),
        )
        for step, accuracy in measured.items()
    ]
    candidates = [Candidate(one.name, one.step, one.metrics) for one in kept]
    ranking = ranked(candidates, "validation/accuracy", "max")
    # Of two that are equal, the later one is better.
    assert ranking[0].step == 40
    mirror = Mirror(run.folder, tracking_uri, "tests")
    mirror.start()
    for one in kept:
        if one.step in (20, 40):
            run.evaluate(one, "validation", {"accuracy": measured[one.step]})
    run.outcome(kept[3], {"accuracy": 0.75})
    assert mirror.close(EndStatus.FINISHED)
    for _ in range(2):
        found = models(tracking_uri)
        assert steps(found) == [one.step for one in ranking]
        for model, one in zip(found, ranking, strict=True):
            checkpoint = run.folder.find(one.name)
            assert model.tags["evertrain.checkpoint"] == run.folder.store.uri(checkpoint.key)
            assert model.tags["evertrain.checkpoint_digest"] == checkpoint.digest
            expected = [] if one.step == 30 else [(measured[one.step], "Digits-validation")]
            shown = [(m.value, m.dataset_name) for m in model.metrics or []]
            assert shown == expected
        # The nested run has each (metric, step) once, whoever measured it.
        assert set(points(tracking_uri, "evaluate").values()) == {1}
        run.lease.release()
        catch_up(run.folder, tracking_uri)


def test_the_test_metrics_are_those_of_the_best_model_on_the_test_split(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.change_record(datasets=DATA)
    best = run.commit(range(1, 20), finished=True, model=module(run))
    run.outcome(best, run.evaluate(best, "test").metrics)
    for _ in range(2):
        mirrored(run.folder, tracking_uri)
        (model,) = models(tracking_uri)
        shown = {(m.key, m.dataset_name, m.value) for m in model.metrics}
        assert shown >= {("test/accuracy", "Digits-test", 0.9), ("test/loss", "Digits-test", 0.3)}
        assert points(tracking_uri)["test/accuracy", 0] == 1


def test_while_it_is_trained_only_what_was_validated_is_a_model(
    run: RunBuilder, tracking_uri: str
) -> None:
    mirror = Mirror(run.folder, tracking_uri, "tests")
    mirror.start()
    try:
        run.commit(range(1, 10))
        run.commit(range(10, 20), validated=False)
        assert mirror.flush()
        assert steps(models(tracking_uri)) == [9]
        run.commit(range(20, 30), validated=False, finished=True)
        assert mirror.flush()
        assert sorted(steps(models(tracking_uri))) == [9, 19, 29]
    finally:
        mirror.close(EndStatus.FINISHED)


@pytest.mark.promise("kept-models")
def test_the_model_of_a_deleted_checkpoint_goes_and_a_registered_copy_stays(
    run: RunBuilder, tracking_uri: str
) -> None:
    first = run.commit(range(1, 10), model=module(run))
    second = run.commit(range(10, 20), finished=True, model=module(run))
    uri = log_best(run, tracking_uri, first)
    assert sorted(steps(models(tracking_uri))) == [9, 19]
    register(tracking_uri, uri)
    for one in (first, second):
        run.folder.store.delete(f"checkpoints/{one.name}/manifest.json")
    run.commit(range(20, 30), finished=True)
    mirror_once(run, tracking_uri)
    assert sorted(steps(models(tracking_uri))) == [9, 29]


@pytest.mark.promise("mirror-weights")
@pytest.mark.parametrize(("asked", "copied"), [("best", [9]), ("kept", [9, 19]), ("none", [])])
def test_weights_are_copied_as_asked_and_what_is_copied_is_pinned(
    run: RunBuilder, tracking_uri: str, asked: str, copied: list[int]
) -> None:
    run.change_record(pipeline={"experiment": "tests", "mirror_weights": asked})
    best = run.commit(range(1, 10), model=module(run))
    run.commit(range(10, 20), finished=True, model=module(run))
    uri = log_best(run, tracking_uri, best)
    found = {int(model.params["step"]): model for model in models(tracking_uri)}
    assert found.keys() == {9, 19}
    assert bool(uri) == bool(copied)
    client = MlflowClient(tracking_uri)
    for step, model in found.items():
        said = "copied" if step in copied else "referenced"
        assert model.tags["evertrain.weights"] == said
        files = [file.path for file in client.list_logged_model_artifacts(model.model_id)]
        assert ("MLmodel" in files) == (step in copied)
    if uri:
        assert uri == f"models:/{found[9].model_id}"
    pinned = {pin.checkpoint for pin in valid_pins(run.folder.store)}
    assert pinned == {str(c.name) for c in run.folder.checkpoints() if c.step in copied}


@pytest.mark.slow
@pytest.mark.promise("release-models")
def test_who_releases_models_has_them_deleted_with_their_checkpoints(
    run: RunBuilder, tracking_uri: str
) -> None:
    best = run.commit(range(1, 10), model=module(run))
    run.commit(range(10, 20), finished=True, model=module(run))
    uri = log_best(run, tracking_uri, best)
    # Who prunes keeps the best one that a report names.
    run.folder.store.delete("report.json")
    run.lease.release()
    rules = RetentionRules(
        monitor="validation/accuracy", monitor_order="max", keep_last=1, keep_best=1
    )
    stays = {one.name: one.goes for one in prune_run(run.folder, rules=rules)}
    assert stays[best.name] is False
    assert len(models(tracking_uri)) == 2
    prune_run(run.folder, rules=rules, release_models_in=tracking_uri)
    assert steps(models(tracking_uri)) == [19]
    with pytest.raises(MlflowException, match="not found"):
        MlflowClient(tracking_uri).get_logged_model(uri.removeprefix("models:/"))
    assert stages(tracking_uri)["pipeline"].info.status == "FINISHED"


def test_what_a_training_function_reported_is_ranked_by_what_it_reported(
    tmp_path: Path, tracking_uri: str
) -> None:
    config = TrainConfig(train_fn="package.module:function", monitor="accuracy")
    run = RunBuilder(RunFolder(str(tmp_path / "runs"), "function"), config)
    found = [
        run.commit(
            range(step, step + 1),
            metrics={"accuracy": accuracy, "text": None},
            validated=False,
            reported={"model.pt": b""},
        )
        for step, accuracy in ((1, 0.5), (2, 0.75), (3, 0.625))
    ]
    run.commit(range(4, 5), validated=False, stopped_by="function_end", scheduled=False, files=())
    assert log_best(run, tracking_uri, found[1]) == ""
    client = MlflowClient(tracking_uri)
    by_accuracy = [{"field_name": "metrics.accuracy", "ascending": False}]
    ranked_ones = client.search_logged_models(["1"], order_by=by_accuracy)
    # The end of the function is no folder, so it is no model.
    assert steps(list(ranked_ones)) == [2, 3, 1]
    assert {model.tags["evertrain.weights"] for model in ranked_ones} == {"referenced"}
    assert stages(tracking_uri)["evaluate"].info.status == "FINISHED"
