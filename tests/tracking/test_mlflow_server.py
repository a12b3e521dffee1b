from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from tests.tracking.conftest import MlflowServer
from tests.tracking.delivery.test_mirror import expected, mirror_once, points, stages
from tests.tracking.following import mlflow_at
from tests.tracking.run_builder import RunBuilder
from tests.tracking.test_models import commit_digits
from train_core.errors import TrackingError
from train_core.policy.end_status import EndStatus
from train_core.tracking.delivery.mirror import Mirror


def check(run: RunBuilder, uri: str, experiment: str = "tests") -> None:
    mirror = Mirror(run.folder, uri, experiment)
    try:
        mirror.check()
    finally:
        mirror.close(EndStatus.FAILED)


@pytest.mark.promise("mlflow-checked")
@pytest.mark.parametrize("path", ["401", "403", "404", "200"])
def test_a_server_that_refuses_is_an_error(run: RunBuilder, answering: str, path: str) -> None:
    begin = time.monotonic()
    with pytest.raises(TrackingError, match=f"{answering}/{path}"):
        check(run, f"{answering}/{path}")
    assert time.monotonic() - begin < 15


@pytest.mark.parametrize("uri", ["ftp://example.org", "foo://bar", "http://", "./mlruns"])
def test_an_address_that_cannot_be_one_is_an_error(run: RunBuilder, uri: str) -> None:
    with pytest.raises(TrackingError, match="MLflow"):
        check(run, uri)


def test_a_database_that_cannot_be_created_is_an_error(run: RunBuilder, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrackingError, match="cannot be created"):
        check(run, f"sqlite:///{tmp_path}/file/mlflow.db")


def test_a_deleted_experiment_is_an_error(run: RunBuilder, tracking_uri: str) -> None:
    client = MlflowClient(tracking_uri)
    client.delete_experiment(client.create_experiment("old"))
    with pytest.raises(TrackingError, match="restore"):
        check(run, tracking_uri, "old")


@pytest.mark.promise("secrets")
@pytest.mark.parametrize("path", ["401", "503"])
def test_nothing_that_is_said_shows_a_password(
    run: RunBuilder, answering: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = answering.replace("http://", "http://anna:secret@")
    mirror = Mirror(run.folder, f"{address}/{path}", "tests")
    mirror.start()
    assert not mirror.flush(timeout_s=2)
    with contextlib.suppress(TrackingError):
        mirror.check()
    assert not mirror.close(EndStatus.FAILED, timeout_s=1)
    assert "MLflow" in caplog.text
    assert "secret" not in caplog.text + str(mirror._sender.refusal)


@pytest.mark.promise("mlflow-checked")
@pytest.mark.parametrize("path", ["429", "500", "503"])
def test_a_server_that_is_merely_down_is_no_error(
    run: RunBuilder, answering: str, path: str
) -> None:
    check(run, f"{answering}/{path}")


def test_a_check_creates_nothing(run: RunBuilder, tracking_uri: str, tmp_path: Path) -> None:
    check(run, tracking_uri)
    assert MlflowClient(tracking_uri).get_experiment_by_name("tests") is None
    check(run, f"sqlite:///{tmp_path}/new/mlflow.db")
    assert not (tmp_path / "new" / "mlflow.db").exists()


@pytest.mark.promise("mlflow-outage")
def test_what_a_down_server_missed_is_mirrored_when_it_is_up(
    run: RunBuilder, server: MlflowServer, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = Mirror(run.folder, server.uri, "tests")
    mirror.check()
    mirror.start()
    try:
        run.commit(range(1, 400))
        assert not mirror.flush(timeout_s=1)
        server.start()
        assert mirror.flush()
        assert points(server.uri) == expected(range(1, 400))
        server.stop()
        run.commit(range(400, 900))
        assert not mirror.flush(timeout_s=1)
        server.start()
        run.commit(range(900, 1000), finished=True)
        assert mirror.flush()
    finally:
        assert mirror.close(EndStatus.FINISHED)
    assert points(server.uri) == expected(range(1, 1000))
    assert {stage.info.status for stage in stages(server.uri).values()} == {"FINISHED"}
    fails = [r for r in caplog.records if "fails, and is tried again" in r.getMessage()]
    assert len(fails) == 2, "one warning for an outage"
    assert all(record.levelno == logging.WARNING for record in fails)


@pytest.mark.promise("mlflow-outage")
@pytest.mark.slow
def test_a_dead_server_delays_the_end_by_seconds(run: RunBuilder, server: MlflowServer) -> None:
    mirror = Mirror(run.folder, server.uri, "tests")
    mirror.start()
    run.commit(range(1, 10), finished=True)
    begin = time.monotonic()
    assert not mirror.flush()
    assert not mirror.close(EndStatus.FINISHED)
    assert time.monotonic() - begin < 20
    assert mirror.tracking().run_id == ""
    server.start()
    mirror_once(run, server.uri)
    assert points(server.uri) == expected(range(1, 10))


@pytest.mark.slow
def test_a_server_keeps_the_model_and_the_page_of_the_run(
    run: RunBuilder, server: MlflowServer
) -> None:
    server.start()
    best, _ = commit_digits(run)
    mirror = Mirror(run.folder, server.uri, "tests")
    mirror.start()
    run.evaluate(best, "test")
    run.outcome(best, {"accuracy": 0.75})
    assert mirror.flush()
    tracking = mirror.tracking()
    assert mirror.close(EndStatus.FINISHED)
    page = f"{server.uri}/#/experiments/{tracking.experiment_id}/runs/{tracking.run_id}"
    assert tracking.url == f"{page}?workflowType=machine_learning"
    with mlflow_at(server.uri):
        served = mlflow.pyfunc.load_model(tracking.model_uri)
    assert len(served.predict(served.input_example)) == 2
