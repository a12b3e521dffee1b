"""The mirror is never stuck: what MLflow refuses for good is told once, left out, and passed."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException, RestException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, RESOURCE_ALREADY_EXISTS
from mlflow.utils.validation import _validate_metric_name
from requests import ConnectionError as NoConnection
from requests import HTTPError, Response

from tests.champion.samples import MODEL, decide, decision, promote
from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind
from tests.tracking.conftest import MlflowServer
from tests.tracking.delivery.test_mirror import expected, mirror_once, points, stages
from tests.tracking.following import following, tracker_of
from tests.tracking.run_builder import BEGIN_S, RunBuilder
from tests.tracking.test_models import commit_digits
from train_core.champion.log import ModelLog
from train_core.config import TrainConfig
from train_core.datasets.arrays import ArrayDataset
from train_core.datasets.protocols import Split
from train_core.errors import StorageError
from train_core.policy.end_status import EndStatus
from train_core.results import CheckpointSummary
from train_core.storage.records.journal import Entry
from train_core.storage.run_folder import RunFolder
from train_core.timing import TrackingTiming
from train_core.tracking.delivery.catch_up import catch_up
from train_core.tracking.delivery.mirror import Mirror
from train_core.tracking.follow import NOT_SHOWN
from train_core.tracking.mlflow import send_metrics
from train_core.tracking.mlflow.passing_client import passing_client
from train_core.tracking.mlflow.send_metrics import earlier_key_of, key_of
from train_core.tracking.mlflow.server import failure_of
from train_core.tracking.refusals import Failure, Refusals
from train_core.tracking.show_results import show_gate
from train_core.tracking.tracker import Point, Points
from train_core.workloads.digits import Digits

PATIENT = TrackingTiming(poll_s=0.05, max_backoff_s=0.1, down_after_s=60)


def answered(status: int) -> HTTPError:
    response = Response()
    response.status_code = status
    return HTTPError(f"{status} Client Error", response=response)


def by_proxy(status: int) -> MlflowException:
    """As MLflow's client raises what is no answer of MLflow's."""
    return MlflowException(
        f"API request to endpoint /api failed with error code {status} != 200. Response body: 'no'"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MlflowException("a name", INVALID_PARAMETER_VALUE), Failure.REFUSED),
        (MlflowException("it exists", RESOURCE_ALREADY_EXISTS), Failure.REFUSED),
        *((by_proxy(status), Failure.REFUSED) for status in (400, 402, 403, 409, 411, 413, 422)),
        *((answered(status), Failure.REFUSED) for status in (403, 409, 413)),
        *((by_proxy(status), Failure.LOGIN) for status in (401, 407)),
        (answered(401), Failure.LOGIN),
        *((by_proxy(status), Failure.GONE) for status in (404, 410)),
        (RestException({"error_code": "RESOURCE_DOES_NOT_EXIST"}), Failure.GONE),
        (
            RestException(
                {
                    "error_code": "INVALID_PARAMETER_VALUE",
                    "message": "The run 1 must be in the 'active' state. It is in deleted state.",
                }
            ),
            Failure.GONE,
        ),
        *((by_proxy(status), Failure.OUTAGE) for status in (408, 429, 500, 502, 503, 504)),
        *((answered(status), Failure.OUTAGE) for status in (408, 429, 500, 503)),
        (NoConnection("reset"), Failure.OUTAGE),
        (StorageError("away"), Failure.OUTAGE),
        (ConnectionResetError(), Failure.OUTAGE),
        # What prepared a request: it would fail again.
        (IndexError("index 1 is out of bounds"), Failure.REFUSED),
        (FileNotFoundError("a picture"), Failure.REFUSED),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}"[:60],
)
def test_an_error_calls_for_a_wait_a_login_new_ids_or_going_on(
    error: Exception, kind: Failure
) -> None:
    assert failure_of(error) is kind


@pytest.fixture
def proxy(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    # MLflow's client repeats an upload by itself otherwise.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server.start()
    with FaultProxy(server.uri) as found:
        yield found


def mirror_all(run: RunBuilder, uri: str, best: CheckpointSummary) -> Mirror:
    """A whole pipeline's mirror, to its end."""
    mirror = Mirror(run.folder, uri, "tests", timing=PATIENT)
    mirror.start()
    run.evaluate(best, "test")
    run.outcome(best, {"accuracy": 0.9}, gate=run.champion(best))
    assert mirror.flush(120)
    assert mirror.close(EndStatus.FINISHED, timeout_s=120)
    return mirror


def refused(status: int, method: str, target: str, **more: Any) -> Fault:
    """Requests that a proxy refuses by itself, with a page that is no MLflow's."""
    more = {"times": math.inf, **more}
    page = b"<html>refused by the proxy</html>"
    return Fault(Kind.REFUSE, method, target, status=f"{status} refused", body=page, **more)


REFUSALS = {
    "weights-413": (refused(413, "PUT", "safetensors"), "the weights of "),
    "weights-503": (refused(503, "PUT", "safetensors"), "the weights of "),
    "artifacts-403": (refused(403, "PUT", "mlflow-artifacts"), "artifact checkpoints.json"),
    "artifacts-404": (refused(404, "PUT", "mlflow-artifacts"), "artifact checkpoints.json"),
    "inputs-409": (refused(409, "POST", "log-inputs"), "the datasets"),
    "parameter-400": (
        refused(400, "POST", "log-batch", asks=rb'"key": ?"settings\.width"'),
        "parameter ",
    ),
    "curve-400": (
        refused(400, "POST", "log-batch", asks=rb'"key": ?"train/learning_rate"'),
        "metric train/le",
    ),
    "models-403": (refused(403, "POST", "logged-models$"), "the model"),
    "description-403": (refused(403, "PATCH", "registered-models/update"), "registered model"),
}


@pytest.mark.slow
@pytest.mark.promise("mirror")
@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_refused_for_good_is_told_once_and_everything_else_is_there(
    run: RunBuilder,
    proxy: FaultProxy,
    server: MlflowServer,
    case: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault, told = REFUSALS[case]
    proxy.schedule.add(fault)
    best, _ = commit_digits(run)
    if "weights" not in case:
        # A model's code is hundreds of files.
        pipeline = run.folder.record().pipeline | {"mirror_weights": "none"}
        run.change_record(pipeline=pipeline)
    with caplog.at_level(logging.WARNING):
        mirror = mirror_all(run, proxy.url, best)
    assert proxy.schedule.hits
    warned = [one.getMessage() for one in caplog.records if "does not take it" in one.getMessage()]
    assert any(told in one for one in warned), warned
    assert len(set(warned)) == len(warned)
    assert any(one.startswith(told) for one in mirror.not_shown)
    # The decision, the alias and the status get through, and every curve that was not refused.
    shown, client = stages(server.uri)["pipeline"], MlflowClient(server.uri)
    assert shown.info.status == "FINISHED"
    assert shown.data.tags["evertrain.gate"].startswith(f"models:/{MODEL}/1")
    assert told in shown.data.tags[NOT_SHOWN]
    version = client.get_model_version_by_alias(MODEL, "champion")
    assert version.tags["evertrain.checkpoint_digest"] == run.folder.find(best.name).digest
    curves = {point for point in points(server.uri) if point[0].startswith("train/")}
    left_out = {"train/learning_rate"} if case == "curve-400" else set()
    assert curves == {one for one in expected(range(1, 12)) if one[0] not in left_out}
    # Asked once more, and refused no more: nothing is missing, and nothing is there twice.
    run.lease.release()
    proxy.schedule.clear()
    catch_up(run.folder, proxy.url, PATIENT)
    shown = stages(server.uri)["pipeline"]
    assert NOT_SHOWN not in shown.data.tags
    assert shown.data.params["settings.width"] == "4"
    assert {
        point: count for point, count in points(server.uri).items() if point[0].startswith("train/")
    } == dict(expected(range(1, 12)))
    files = {file.path for file in client.list_artifacts(shown.info.run_id)}
    assert files >= {"checkpoints.json", "curves.png", "gate"}


@pytest.mark.slow
def test_a_request_that_is_too_large_is_made_in_parts(
    run: RunBuilder, proxy: FaultProxy, server: MlflowServer
) -> None:
    proxy.schedule.add(refused(413, "POST", "log-batch", min_bytes=4000))
    run.commit(range(1, 101), finished=True)
    mirror = Mirror(run.folder, proxy.url, "tests", timing=PATIENT)
    mirror.start()
    assert mirror.flush(120)
    assert mirror.close(EndStatus.FINISHED)
    assert proxy.schedule.hits
    assert mirror.not_shown == []
    assert points(server.uri) == expected(range(1, 101))


@pytest.mark.slow
def test_a_login_that_has_ended_is_waited_for(
    run: RunBuilder, proxy: FaultProxy, server: MlflowServer
) -> None:
    """A token is renewed: nothing of what was sent meanwhile is left out."""
    proxy.schedule.add(refused(401, "POST", "log-batch|update", times=6))
    run.commit(range(1, 30), finished=True)
    mirror = Mirror(run.folder, proxy.url, "tests", timing=PATIENT)
    mirror.start()
    assert mirror.flush(120)
    assert mirror.close(EndStatus.FINISHED)
    assert proxy.schedule.seen > [6]
    assert mirror.not_shown == []
    assert points(server.uri) == expected(range(1, 30))


def test_what_follows_a_refused_point_is_sent_and_the_position_stays_before_it(
    tracking_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_metrics, "MAX_METRICS", 2)
    client = passing_client(tracking_uri, Refusals(failure_of=failure_of))
    run_id = client.create_run(client.create_experiment("points")).info.run_id

    def send(*names: str) -> str | None:
        """The position that MLflow has afterwards."""
        batches = [
            Points([Point(name, 1.0, step, BEGIN_S)], {"position": str(step)})
            for step, name in enumerate(names, 1)
        ]
        send_metrics.send_points(client, run_id, batches, str)
        tags: dict[str, str] = client.get_run(run_id).data.tags
        return tags.get("position")

    assert send("loss", "no<name", "loss", "loss") is None
    assert [one.step for one in client.get_metric_history(run_id, "loss")] == [1, 3, 4]
    assert send("loss", "loss", "loss", "loss") == "4"


def test_names_that_differ_in_what_mlflow_does_not_take_stay_apart(
    tmp_path: Path, tracking_uri: str, run: RunBuilder
) -> None:
    names = ("share age<30", "share age>30", "share age_30", "ü/<", "ü/>", "a//b", "a/b")
    metrics = {f"validation/{name}": 0.1 * number for number, name in enumerate(names, 1)}
    run.commit(range(1, 3), finished=True, entries=entries_with(metrics))
    mirror = mirror_once(run, tracking_uri)
    assert mirror.not_shown == []
    found = stages(tracking_uri)["pipeline"].data.metrics
    shown = {key: value for key, value in found.items() if key.startswith("validation/")}
    assert sorted(shown.values()) == pytest.approx(sorted(metrics.values()))
    assert shown["validation/share age_30"] == pytest.approx(0.3)
    assert shown["validation/share age_x003C_30"] == pytest.approx(0.1)


def entries_with(metrics: dict[str, float]) -> list[Entry]:
    return [Entry(step=step, time=BEGIN_S + step, metrics=metrics, rates={}) for step in (1, 2)]


def test_settings_of_a_function_that_differ_in_such_a_character_are_all_shown(
    tmp_path: Path, tracking_uri: str
) -> None:
    config = TrainConfig(
        workload="",
        train_fn="tests.compat.functions.plain:train",
        train_loop_config={"age<30": 1, "age>30": 2, "age_30": 3},
    )
    run = RunBuilder(RunFolder(str(tmp_path / "runs"), "digits-1"), config)
    run.commit(range(1, 10), finished=True)
    run.lease.release()
    catch_up(run.folder, tracking_uri)
    params = stages(tracking_uri)["pipeline"].data.params
    assert params["train_loop_config.age_30"] == "3"
    found = {value for name, value in params.items() if name.startswith("train_loop_config.age")}
    assert found == {"1", "2", "3"}


def test_a_run_that_an_earlier_version_began_keeps_the_names_of_its_curves(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.commit(range(1, 3), entries=entries_with({"validation/share age<30": 0.5}))
    mirror_once(run, tracking_uri)
    client, shown = MlflowClient(tracking_uri), stages(tracking_uri)["pipeline"]
    client.delete_tag(shown.info.run_id, "evertrain.names")
    runs = tracker_of(run.folder, tracking_uri).runs
    assert runs.naming("validation/share age<30") == "validation/share age_30"


@given(one=st.text(max_size=12), two=st.text(max_size=12))
@example(one="a_x003C<", two="a<x003C_")
@example(one="a/./b", two="a/b")
@example(one="..a", two="a")
@example(one="", two="_")
def test_two_names_never_become_one_and_mlflow_takes_each(one: str, two: str) -> None:
    assert one == two or key_of(one) != key_of(two)
    _validate_metric_name(key_of(one))
    assert key_of(key_of(one)) == key_of(one) or "_x" in key_of(one)


@given(name=st.from_regex(r"[a-z_.\- :]([a-z_.\- :/]{0,20}[a-z_])?", fullmatch=True))
def test_a_name_that_mlflow_takes_stays(name: str) -> None:
    assert key_of(name) == name or earlier_key_of(name) != name or name.startswith("..")


@pytest.mark.parametrize("name", ["m" * 300, "m" * 299 + "<", "/".join("m" * 200)])
def test_a_name_that_is_too_long_ends_with_a_digest_of_all_of_it(name: str) -> None:
    assert key_of(name) != key_of(name + "x")
    assert len(key_of(name)) <= 250
    _validate_metric_name(key_of(name))


def test_a_model_whose_validation_split_has_one_row_is_there(
    tmp_path: Path, tracking_uri: str
) -> None:
    config = TrainConfig(workload=f"{__name__}:OneRow", settings={"width": 4})
    run = RunBuilder(RunFolder(str(tmp_path / "runs"), "digits-1"), config)
    best, _ = commit_digits(run)
    mirror = mirror_all(run, tracking_uri, best)
    assert mirror.not_shown == []
    client = MlflowClient(tracking_uri)
    assert str(client.get_model_version_by_alias(MODEL, "champion").version) == "1"
    assert mirror.tracking().model_uri


class OneRow(Digits):
    """Has one sample to validate with."""

    def dataset(self, split: Split) -> ArrayDataset:
        found = super().dataset(split)
        if split != "validation":
            return found
        return ArrayDataset(**found.__getitems__(np.arange(1)))


def test_a_registered_model_that_was_renamed_is_followed_and_told(
    run: RunBuilder, tracking_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, best = MlflowClient(tracking_uri), run.commit(range(1, 10), finished=True)
    result = run.champion(best)
    show_gate(following(run.folder, tracker_of(run.folder, tracking_uri)).shown, result)
    client.rename_registered_model(MODEL, "digits-of-the-bank")
    client.delete_registered_model_alias("digits-of-the-bank", "champion")
    with caplog.at_level(logging.WARNING):
        show_gate(following(run.folder, tracker_of(run.folder, tracking_uri)).shown, result)
    assert "is called 'digits-of-the-bank' in MLflow now" in caplog.text
    version = client.get_model_version_by_alias("digits-of-the-bank", "champion")
    assert version.tags["evertrain.run"] == run.folder.name
    assert [one.name for one in client.search_registered_models()] == ["digits-of-the-bank"]


def test_a_registered_model_that_was_deleted_is_made_again_and_told(
    tmp_path: Path, tracking_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = MlflowClient(tracking_uri)
    for name in ("first", "second"):
        run = RunBuilder(RunFolder(str(tmp_path / "runs"), name))
        best = run.commit(range(1, 10), finished=True)
        log = ModelLog(run.folder.storage, MODEL)
        version, _ = log.register(name, best.name, run.folder.find(best.name).digest)
        made = decision(version, len(log.read().entries))
        decide(run.folder, made)
        result = promote(run.folder, made)
        with caplog.at_level(logging.WARNING):
            follower = following(run.folder, tracker_of(run.folder, tracking_uri))
            show_gate(follower.shown, result)
        if name == "first":
            assert "was deleted in MLflow" not in caplog.text
            client.delete_registered_model(MODEL)
    assert "was deleted in MLflow" in caplog.text
    assert client.get_registered_model(MODEL).tags["evertrain.model"] == MODEL
