from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.ranks.without_ray import stages_without_ray
from tests.tracking.following import mirrored
from tests.tracking.run_builder import RunBuilder, entry
from train_core.config import TrainConfig
from train_core.driver.held_run import HeldRun
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest
from train_core.stages import PUBLISH
from train_core.storage.records.data_files import SourceRecord
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run, quarantine
from train_core.timing import TrackingTiming
from train_core.tracking.delivery.mirror import Mirror

OFTEN = TrackingTiming(poll_s=0.1)


def mirror_once(run: RunBuilder, uri: str, status: EndStatus = EndStatus.FINISHED) -> Mirror:
    mirror = Mirror(run.folder, uri, "tests")
    mirror.start()
    assert mirror.flush()
    assert mirror.close(status)
    return mirror


def stages(uri: str) -> dict[str, Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    counted = Counter(found.data.tags["evertrain.stage"] for found in runs)
    assert set(counted.values()) == {1}, counted
    return {found.data.tags["evertrain.stage"]: found for found in runs}


def points(uri: str, stage: str = "pipeline") -> Counter[tuple[str, int]]:
    client, found = MlflowClient(uri), stages(uri)[stage]
    return Counter(
        (key, point.step)
        for key in found.data.metrics
        if not key.startswith("system/")
        for point in client.get_metric_history(found.info.run_id, key)
    )


def expected(steps: range) -> Counter[tuple[str, int]]:
    return Counter(
        (key, step)
        for step in steps
        for key in ("train/loss", "train/learning_rate", "train/samples_per_s")
    )


@pytest.mark.promise("mlflow-once")
def test_every_committed_metric_is_there_once_with_the_journals_time(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.commit(range(1, 500))
    run.commit(range(500, 701), finished=True)
    mirror_once(run, tracking_uri)
    assert points(tracking_uri) == expected(range(1, 701))
    run_id = stages(tracking_uri)["pipeline"].info.run_id
    history = MlflowClient(tracking_uri).get_metric_history(run_id, "train/loss")
    assert {p.step: p.timestamp for p in history} == {
        step: round(entry(step).time * 1000) for step in range(1, 701)
    }
    assert {p.step: p.value for p in history if p.step != 3} == {
        step: 1 / step for step in range(1, 701) if step != 3
    }


@pytest.mark.promise("mlflow-once")
def test_a_metric_that_was_not_finite_is_shown_as_nan(run: RunBuilder, tracking_uri: str) -> None:
    run.commit(range(1, 5), finished=True)
    mirror_once(run, tracking_uri)
    run_id = stages(tracking_uri)["pipeline"].info.run_id
    history = MlflowClient(tracking_uri).get_metric_history(run_id, "train/loss")
    assert [p.step for p in history if math.isnan(p.value)] == [3]


def test_mirroring_again_adds_nothing(run: RunBuilder, tracking_uri: str) -> None:
    best = run.commit(range(1, 50), finished=True)
    for split in ("validation", "test"):
        run.evaluate(best, split)
    for _ in range(2):
        mirrored(run.folder, tracking_uri)
    tested = Counter([("test/accuracy", 0), ("test/loss", 0)])
    assert points(tracking_uri) == expected(range(1, 50)) + tested
    assert points(tracking_uri, "evaluate") == {
        ("validation/accuracy", 49): 1,
        ("validation/loss", 49): 1,
    }


def test_a_lost_position_adds_nothing(run: RunBuilder, tracking_uri: str) -> None:
    run.commit(range(1, 50))
    mirror_once(run, tracking_uri, EndStatus.KILLED)
    run_id = stages(tracking_uri)["pipeline"].info.run_id
    MlflowClient(tracking_uri).set_tag(run_id, "evertrain.mirrored", "20+1")
    mirror_once(run, tracking_uri)
    assert points(tracking_uri) == expected(range(1, 50))


@pytest.mark.promise("mlflow-same-runs")
def test_a_restart_goes_on_in_the_same_mlflow_runs(run: RunBuilder, tracking_uri: str) -> None:
    run.commit(range(1, 30))
    before = mirror_once(run, tracking_uri, EndStatus.KILLED).tracking()
    assert stages(tracking_uri)["pipeline"].info.status == "KILLED"
    run.new_attempt()
    run.commit(range(30, 60), finished=True)
    after = mirror_once(run, tracking_uri).tracking()
    assert after.run_id == before.run_id
    assert points(tracking_uri) == expected(range(1, 60))
    assert {s.info.status for s in stages(tracking_uri).values()} == {"FINISHED"}


@pytest.mark.promise("mlflow-once")
def test_steps_that_are_trained_again_are_not_shown_twice(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.commit(range(1, 30))
    good = run.segments
    damaged = run.commit(range(30, 60))
    mirror_once(run, tracking_uri, EndStatus.FAILED)
    run.segments = good
    name = CheckpointName.parse(damaged.name)
    assert name is not None
    quarantine(run.folder, name, "a flipped bit")
    run.new_attempt()
    run.commit(range(30, 80), finished=True, time_s=1_790_001_000)
    mirror_once(run, tracking_uri)
    assert points(tracking_uri) == expected(range(1, 80))
    shown = stages(tracking_uri)["pipeline"]
    assert shown.data.tags["evertrain.quarantined"] == damaged.name
    client = MlflowClient(tracking_uri)
    file = client.download_artifacts(shown.info.run_id, "quarantined.json")
    assert json.loads(Path(file).read_text()) == {damaged.name: "a flipped bit"}


@pytest.mark.slow
def test_what_a_later_attempt_adds_to_a_step_is_shown_and_the_rest_not_twice(
    run: RunBuilder, tracking_uri: str
) -> None:
    # It was stopped after the last step of an epoch, before its validation.
    run.commit(range(1, 21))
    mirror_once(run, tracking_uri, EndStatus.KILLED)
    run.new_attempt()
    validation = entry(20).model_copy(update={"metrics": {"validation/loss": 0.5}, "rates": {}})
    run.commit(range(20, 21), entries=[validation])
    mirror_once(run, tracking_uri, EndStatus.KILLED)
    run.new_attempt()
    run.commit(range(21, 40), finished=True)
    for _ in range(2):
        mirror_once(run, tracking_uri)
    assert points(tracking_uri) == expected(range(1, 40)) + Counter([("validation/loss", 20)])


@pytest.mark.slow
def test_what_a_driver_did_not_come_to_show_is_shown_with_the_report(
    run: RunBuilder, tracking_uri: str
) -> None:
    best = run.commit(range(1, 50), finished=True)
    evaluations = [run.evaluate(best, "validation"), run.evaluate(best, "test")]
    predictions = run.predict(best)
    # The next one is asked for the report only.
    asked = {"storage": run.folder.storage, "run": run.folder.name}
    driver = stages_without_ray(DriverRequest(**asked, config=run.folder.record().config))
    driver.held = HeldRun(driver.folder, run.lease)
    driver.mirror = Mirror(run.folder, tracking_uri, "tests")
    driver.mirror.start()
    driver.publish(
        PUBLISH.arguments(
            train=run.trained(best),
            evaluations=evaluations,
            best=best,
            predictions=predictions,
            seconds={},
        )
    )
    assert driver.mirror.close(EndStatus.FINISHED)
    assert points(tracking_uri, "evaluate") == {
        ("validation/accuracy", 49): 1,
        ("validation/loss", 49): 1,
    }
    finals = {key for key, _ in points(tracking_uri)} - {key for key, _ in expected(range(1, 2))}
    assert finals == {"best/validation/accuracy", "test/accuracy", "test/loss"}
    shown = {stage: found.info.status for stage, found in stages(tracking_uri).items()}
    assert shown == dict.fromkeys(("pipeline", "evaluate", "infer"), "FINISHED")


def test_commits_are_shown_while_the_training_runs(run: RunBuilder, tracking_uri: str) -> None:
    mirror = Mirror(run.folder, tracking_uri, "tests")
    mirror.start()
    try:
        assert mirror.flush()
        assert stages(tracking_uri)["pipeline"].info.status == "RUNNING"
        for steps in (range(1, 10), range(10, 20)):
            run.commit(steps)
            assert mirror.flush()
            assert points(tracking_uri) == expected(range(1, steps.stop))
        system = stages(tracking_uri)["pipeline"].data.metrics
        assert "system/cpu_utilization_percentage" in system
    finally:
        mirror.close(EndStatus.KILLED)
    assert {s.info.status for s in stages(tracking_uri).values()} == {"KILLED"}


def test_what_is_not_committed_is_not_shown(run: RunBuilder, tracking_uri: str) -> None:
    run.commit(range(1, 10))
    run.folder.store.write("checkpoints/step-00000020-a0001/model.safetensors", b"half")
    mirror_once(run, tracking_uri)
    assert points(tracking_uri) == expected(range(1, 10))


def test_a_segment_that_is_gone_is_told_of_when_the_training_is_done(
    run: RunBuilder, tracking_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    run.commit(range(1, 10))
    run.folder.store.delete(f"journal/{run.segments[-1].name}")
    mirror_once(run, tracking_uri)
    # The next commit may have it in a larger one.
    assert "not shown" not in caplog.text
    run.commit(range(10, 20), finished=True)
    mirror_once(run, tracking_uri)
    assert "some metrics are not shown" in caplog.text


@pytest.mark.slow
def test_an_entry_larger_than_a_request_is_shown_whole(run: RunBuilder, tracking_uri: str) -> None:
    large = entry(1).model_copy(update={"metrics": {f"m/{i}": float(i) for i in range(2500)}})
    run.commit(range(1, 3), entries=[large, entry(2)])
    mirror_once(run, tracking_uri)
    assert stages(tracking_uri)["pipeline"].data.tags["evertrain.mirrored"] == "2+1"
    assert len(points(tracking_uri)) == 2501 + 3


@pytest.mark.promise("mlflow-view")
def test_the_run_says_what_was_asked(run: RunBuilder, tracking_uri: str) -> None:
    run.commit(range(1, 3), finished=True)
    tracking = mirror_once(run, tracking_uri).tracking()
    found = stages(tracking_uri)
    parent = found["pipeline"]
    assert (parent.info.run_id, parent.info.run_name) == (tracking.run_id, "digits-1")
    assert "mlflow.parentRunId" not in parent.data.tags
    assert parent.data.params["settings.width"] == "4"
    assert parent.data.params["batch_size"] == "128"
    assert "runtime_env" not in parent.data.params
    assert parent.data.tags["evertrain.run"] == run.folder.url
    digests = {i.dataset.name: i.dataset.digest for i in parent.inputs.dataset_inputs}
    assert digests == {"Digits-train": "a" * 36, "Digits-test": "10-samples"}


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        ({"x": "s3://bucket/in"}, ("s3", {"uri": "s3://bucket/in"})),
        ({"x": "/data/in"}, ("local", {"uri": "/data/in"})),
        ({"x": "/a", "y": "/b"}, ("code", {"sources": {"x": "/a", "y": "/b"}})),
    ],
)
def test_the_datasets_say_where_they_come_from(
    tmp_path: Path, tracking_uri: str, urls: dict[str, str], expected: tuple[str, dict[str, Any]]
) -> None:
    folder = RunFolder(str(tmp_path), "digits-1")
    run = RunBuilder(folder)
    run.commit(range(1, 3), finished=True)
    sources = {
        name: SourceRecord(url=url, num_files=1, size_bytes=1, digest="0" * 64)
        for name, url in urls.items()
    }
    record = folder.record().model_copy(update={"sources": sources})
    folder.store.delete("run.json")
    create_run(folder, record)
    mirror_once(run, tracking_uri)
    parent = stages(tracking_uri)["pipeline"]
    found = next(
        i.dataset for i in parent.inputs.dataset_inputs if i.dataset.name == "Digits-train"
    )
    assert found.source_type == expected[0]
    assert json.loads(found.source).items() >= expected[1].items()


@pytest.mark.promise("mlflow-view")
def test_stages_show_their_figures_and_files(run: RunBuilder, tracking_uri: str) -> None:
    best = run.commit(range(1, 20), finished=True)
    mirror = Mirror(run.folder, tracking_uri, "tests")
    mirror.start()
    with mirror.during("evaluate"):
        run.evaluate(best, "test")
    with mirror.during("infer"):
        predictions = run.predict(best)
    assert mirror.close(EndStatus.FINISHED)
    found, client = stages(tracking_uri), MlflowClient(tracking_uri)

    def files(stage: str, folder: str | None = None) -> set[str]:
        return {f.path for f in client.list_artifacts(found[stage].info.run_id, folder)}

    assert files("pipeline") == {"checkpoints.json", "curves.png", "figures"}
    for stage in ("evaluate", "infer"):
        parent = found[stage].data.tags["mlflow.parentRunId"]
        assert parent == found["pipeline"].info.run_id
    assert files("evaluate", "confusion_matrix") == {f"confusion_matrix/test-{best.name}.png"}
    assert files("infer") == {"predictions.json", "predictions"}
    name = predictions.uri.rpartition("/")[2]
    assert files("infer", "predictions") == {f"predictions/{name}.json"}
    assert found["infer"].data.metrics == {}
    assert found["infer"].data.tags["evertrain.num_rows"] == "7"


@pytest.mark.promise("mlflow-same-runs")
def test_a_new_run_at_an_old_address_is_another_mlflow_run(
    tmp_path: Path, run: RunBuilder, tracking_uri: str
) -> None:
    run.commit(range(1, 10), finished=True)
    before = mirror_once(run, tracking_uri).tracking().run_id
    run.folder.store.delete("")
    again = RunBuilder(RunFolder(str(tmp_path / "runs"), "digits-1"))
    record = again.folder.record().model_copy(update={"created_at": "2027-01-01T00:00:00+00:00"})
    again.folder.store.write("run.json", record.model_dump_json().encode())
    again.commit(range(1, 5), finished=True)
    assert mirror_once(again, tracking_uri).tracking().run_id != before


@pytest.mark.promise("mlflow-view")
def test_artifacts_lie_beside_the_database_and_nothing_elsewhere(
    run: RunBuilder, tracking_uri: str, tmp_path: Path
) -> None:
    run.commit(range(1, 10), finished=True)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with contextlib.chdir(folder):
        mirror_once(run, tracking_uri)
    assert not list(folder.iterdir())
    database = Path(tracking_uri.removeprefix("sqlite:///"))
    assert list(database.parent.glob("mlartifacts/*/artifacts/curves.png"))


def test_a_result_that_cannot_be_shown_hides_no_other(
    run: RunBuilder, tracking_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    best = run.commit(range(1, 10), finished=True)
    run.evaluate(best, "validation")
    run.folder.store.delete(f"evaluations/{best.name}/validation/confusion_matrix.json")
    mirror = Mirror(run.folder, tracking_uri, "tests")
    mirror.start()
    run.evaluate(best, "test")
    assert mirror.close(EndStatus.FINISHED)
    assert set(points(tracking_uri)) >= {("test/accuracy", 0), ("test/loss", 0)}
    assert "not shown in MLflow" in caplog.text


def test_a_commit_after_the_end_does_not_begin_the_training_again(
    run: RunBuilder, tracking_uri: str
) -> None:
    class CommittingLate(Mirror):
        """A training that has not stopped yet commits once more before the mirror is closed."""

        def flush(self, timeout_s: float | None = None) -> bool:
            is_sent = super().flush(timeout_s)
            run.commit(range(5, 10))
            self._delivery._thread.join(10 * OFTEN.poll_s)
            return is_sent

    run.commit(range(1, 5))
    mirror = CommittingLate(run.folder, tracking_uri, "tests", timing=OFTEN)
    mirror.start()
    mirror.close(EndStatus.KILLED)
    assert {name: one.info.status for name, one in stages(tracking_uri).items()} == {
        "pipeline": "KILLED"
    }


def test_who_was_replaced_does_not_say_how_the_run_ended(tmp_path: Path, tracking_uri: str) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, gpus_per_worker=0)
    request = DriverRequest(
        storage=str(tmp_path),
        run="run",
        config=config,
        tracking_uri=tracking_uri,
        experiment="tests",
    )
    driver = stages_without_ray(request)
    driver.prepare()
    assert driver.mirror
    assert driver.mirror.flush()
    store = RunFolder(str(tmp_path), "run").store
    # Frozen for a while, it does not know yet.
    store.create("lease/0002.json", store.read("lease/0001.json"))
    driver.close(EndStatus.FAILED)
    statuses = {name: stage.info.status for name, stage in stages(tracking_uri).items()}
    assert statuses == {"pipeline": "RUNNING"}


FIRST = """
import sys
from train_core.tracking.mlflow.server import client_of
client_of(sys.argv[1]).search_experiments()
"""


@pytest.mark.slow
def test_of_several_first_runs_at_once_each_finds_a_whole_database(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    command = [sys.executable, "-c", FIRST, uri]
    with ExitStack() as all_of_them:
        started = [all_of_them.enter_context(subprocess.Popen(command)) for _ in range(3)]
        assert [process.wait(100) for process in started] == [0, 0, 0]
