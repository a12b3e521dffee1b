"""The figures that MLflow shows of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.tracking.delivery.test_mirror import stages
from tests.tracking.following import mirrored
from tests.tracking.run_builder import RunBuilder
from train_core.policy.end_status import EndStatus
from train_core.rank.metrics.scores import ConfidenceBin, Scores, WorstSample
from train_core.tracking.delivery.mirror import Mirror

DATA = {"test": {"samples": 360, "digest": None}}
WORST = tuple(WorstSample(index=i, target=0, prediction=1, score=0.1) for i in range(5))
CLASSIFIER = Scores(
    kind="classifier", bins=(ConfidenceBin(count=4, correct=3, confidence=0.5),) * 20, worst=WORST
)
REGRESSOR = Scores(kind="regressor", pairs=((0.0, 0.5), (1.0, 0.5)), worst=WORST)


def shown(run: RunBuilder, uri: str, folder: str) -> dict[str, int]:
    """The sizes of the artifacts, by their names."""
    run_id = stages(uri)["pipeline"].info.run_id
    found = MlflowClient(uri).list_artifacts(run_id, folder)
    return {Path(one.path).name: one.file_size for one in found if not one.is_dir}


@pytest.mark.promise("figures")
def test_a_classifiers_run_has_its_figures_where_people_tick(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.change_record(datasets=DATA)
    best = run.commit(range(1, 20), finished=True)
    run.evaluate(best, "test", scores=CLASSIFIER)
    training = {"learning_rate.png", "throughput.png"}
    for _ in range(2):
        assert not mirrored(run.folder, tracking_uri).not_shown
        assert shown(run, tracking_uri, "figures").keys() == training
        assert shown(run, tracking_uri, "figures/test").keys() == {
            *("confusion_matrix.png", "per_class.png", "per_class.csv"),
            *("calibration.png", "worst_examples.png", "worst_examples.csv"),
        }
    client, run_id = MlflowClient(tracking_uri), stages(tracking_uri)["pipeline"].info.run_id
    table = client.download_artifacts(run_id, "figures/test/worst_examples.csv")
    assert Path(table).read_text().splitlines()[:2] == [
        "index,target,prediction,score",
        "0,0.0,1.0,0.1",
    ]


def test_a_regressors_run_has_residuals(run: RunBuilder, tracking_uri: str) -> None:
    run.change_record(datasets=DATA)
    best = run.commit(range(1, 20), finished=True)
    mirror = Mirror(run.folder, tracking_uri, "tests")
    mirror.start()
    run.evaluate(best, "test", counts="", scores=REGRESSOR)
    assert mirror.close(EndStatus.FINISHED)
    names = shown(run, tracking_uri, "figures/test").keys()
    # Digits are images, whatever is predicted of them.
    assert names == {"residuals.png", "worst_examples.png", "worst_examples.csv"}


def test_an_evaluation_of_an_earlier_version_has_the_figures_that_it_can(
    run: RunBuilder, tracking_uri: str
) -> None:
    best = run.commit(range(1, 20), finished=True)
    mirror = Mirror(run.folder, tracking_uri, "tests")
    mirror.start()
    run.evaluate(best, "test")
    assert mirror.close(EndStatus.FINISHED)
    assert not mirror.not_shown
    names = shown(run, tracking_uri, "figures/test").keys()
    assert names == {"confusion_matrix.png", "per_class.png", "per_class.csv"}


def test_data_that_are_gone_keep_no_other_figure_back(
    run: RunBuilder, tracking_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    run.change_record(datasets=DATA)
    best = run.commit(range(1, 20), finished=True)
    far = Scores(kind="classifier", worst=(WORST[0].model_copy(update={"index": 10**6}),))
    mirror = Mirror(run.folder, tracking_uri, "tests")
    mirror.start()
    run.evaluate(best, "test", scores=far)
    assert mirror.close(EndStatus.FINISHED)
    assert not mirror.not_shown
    names = shown(run, tracking_uri, "figures/test").keys()
    assert names >= {"per_class.png", "worst_examples.csv"}
    assert "worst_examples.png" not in names
    assert "not shown as images" in caplog.text
