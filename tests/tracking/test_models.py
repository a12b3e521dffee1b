from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from mlflow import MlflowClient
from mlflow.pyfunc.scoring_server import infer_and_parse_data

from tests import commands
from tests.tracking.conftest import MlflowServer
from tests.tracking.following import mirrored, mlflow_at, register
from tests.tracking.run_builder import RunBuilder
from train_core.config import TrainConfig
from train_core.datasets.arrays import ArrayDataset
from train_core.datasets.protocols import Split
from train_core.driver.preparing.init_source import find_origin
from train_core.errors import ConfigError, StorageError, TrackingError
from train_core.loading import load_workload
from train_core.policy.end_status import EndStatus
from train_core.results import CheckpointSummary
from train_core.storage.coordination.pins import MLFLOW_MODEL, valid_pins
from train_core.storage.run_folder import RunFolder
from train_core.tracking.delivery.mirror import Mirror
from train_core.tracking.mlflow.mlflow_tracker import MlflowTracker
from train_core.tracking.mlflow.models.lookups import model_id_of, unregistered_checkpoints
from train_core.tracking.mlflow.serving import SERVED_FILE
from train_core.tracking.tracker import ModelFiles, TrackedModel
from train_core.workloads.digits import Digits, DigitsSettings


class SecretDigitsSettings(DigitsSettings):
    source: str


class SecretDigits(Digits):
    """Its data cannot be reached without the login."""

    Settings = SecretDigitsSettings
    settings: SecretDigitsSettings

    def dataset(self, split: Split) -> ArrayDataset:
        assert "s3cret" in self.settings.source
        return super().dataset(split)


class DatedDigits(Digits):
    """Its data have a column that `prepare` does not read."""

    def dataset(self, split: Split) -> ArrayDataset:
        columns = super().dataset(split).columns
        days = np.arange(len(columns["image"])).astype("datetime64[D]")
        return ArrayDataset(**columns, day=days)


def commit_digits(run: RunBuilder) -> tuple[CheckpointSummary, torch.nn.Module]:
    torch.manual_seed(0)
    config = run.folder.record().config
    model = load_workload(config.workload, config.settings).model().eval()
    return run.commit(range(1, 12), finished=True, model=model), model


def log_best(run: RunBuilder, uri: str, best: CheckpointSummary) -> str:
    run.outcome(best, {"accuracy": 0.75})
    return mirrored(run.folder, uri).tracking().model_uri


def load(uri: str, model_uri: str) -> mlflow.pyfunc.PyFuncModel:
    with mlflow_at(uri):
        return mlflow.pyfunc.load_model(model_uri)


@pytest.mark.promise("model", "same-prepare")
def test_the_best_model_loads_and_predicts_what_the_model_predicts(
    run: RunBuilder, tracking_uri: str
) -> None:
    best, model = commit_digits(run)
    served = load(tracking_uri, log_best(run, tracking_uri, best))
    workload = load_workload("train_core.workloads.digits:Digits", {"width": 4})
    images = workload.dataset("test").__getitems__(np.arange(300))["image"]
    found = served.predict({"image": images})
    with torch.inference_mode():
        outputs = [
            model(workload.prepare({"image": part}, None)["inputs"])
            for part in (images[:256], images[256:])
        ]
    expected = torch.cat(outputs).softmax(dim=1).numpy()
    assert list(found.columns) == ["prediction", "probabilities"]
    assert found["prediction"].tolist() == expected.argmax(axis=1).tolist()
    assert np.array_equal(np.array(found["probabilities"].tolist(), np.float32), expected)


@pytest.mark.slow
def test_the_example_is_read_with_the_login_that_no_record_has(
    tmp_path: Path, tracking_uri: str
) -> None:
    settings = {"width": 4, "source": "ftp://me:s3cret@host/x"}
    config = TrainConfig(workload=f"{__name__}:SecretDigits", settings=settings)
    run = RunBuilder(RunFolder(str(tmp_path / "runs"), "secret"), config.recorded())
    best, _ = commit_digits(run)
    mirror = Mirror(run.folder, tracking_uri, "tests")
    run.outcome(best, {"accuracy": 0.75})
    mirror.start(config)
    assert mirror.close(EndStatus.FINISHED)
    assert mirror.not_shown == []
    found = Path(tracking_uri.removeprefix("sqlite:///")).parent.rglob(SERVED_FILE)
    # The tests' own models travel with the tests' code.
    (served,) = (path for path in found if "code" not in path.parts)
    assert "ftp://***@host/x" in served.read_text()


@pytest.mark.promise("model")
def test_a_column_that_nothing_reads_need_not_be_sent(tmp_path: Path, tracking_uri: str) -> None:
    config = TrainConfig(workload=f"{__name__}:DatedDigits", settings={"width": 4})
    run = RunBuilder(RunFolder(str(tmp_path / "runs"), "dated"), config)
    best, _ = commit_digits(run)
    served = load(tracking_uri, log_best(run, tracking_uri, best))
    assert served.metadata.get_input_schema().input_names() == ["image"]
    assert len(served.predict({"image": np.zeros((3, 8, 8), np.uint8)})) == 3


@pytest.mark.promise("model")
def test_the_served_model_takes_json(run: RunBuilder, tracking_uri: str) -> None:
    best, _ = commit_digits(run)
    served = load(tracking_uri, log_best(run, tracking_uri, best))
    images = np.arange(2 * 64).reshape(2, 8, 8) % 17
    request = json.dumps({"inputs": {"image": images.tolist()}})
    parsed = infer_and_parse_data(json.loads(request), served.metadata.get_input_schema())
    expected = served.predict({"image": images.astype(np.uint8)})
    pd.testing.assert_frame_equal(served.predict(parsed), expected)


def test_the_model_has_a_signature_an_example_and_its_metrics(
    run: RunBuilder, tracking_uri: str
) -> None:
    best, _ = commit_digits(run)
    model_uri = log_best(run, tracking_uri, best)
    served = load(tracking_uri, model_uri)
    assert str(served.metadata.get_input_schema()) == ("['image': Tensor('uint8', (-1, 8, 8))]")
    assert served.input_example["image"].shape == (2, 8, 8)
    logged = MlflowClient(tracking_uri).get_logged_model(model_uri.removeprefix("models:/"))
    assert logged.params == {"step": "11", "epoch": "1", "samples_seen": "110"}
    assert {m.key: m.value for m in logged.metrics} == {
        "validation/accuracy": best.metrics["validation/accuracy"]
    }


@pytest.mark.slow
def test_the_parent_run_has_the_headline_metrics(run: RunBuilder, tracking_uri: str) -> None:
    best, _ = commit_digits(run)
    log_best(run, tracking_uri, best)
    client = MlflowClient(tracking_uri)
    parent = client.search_runs(["1"], "tags.`evertrain.stage` = 'pipeline'")[0]
    # A curve's newest value, as `validation/accuracy` has it, is the last step's.
    finals = {
        "best/validation/accuracy": best.metrics["validation/accuracy"],
        "test/accuracy": 0.75,
    }
    assert parent.data.metrics.items() >= finals.items()
    for key in finals:
        (point,) = client.get_metric_history(parent.info.run_id, key)
        assert point.step == 0, "MLflow draws a bar"
    assert [output.step for output in parent.outputs.model_outputs] == [11]


@pytest.mark.promise("model")
def test_logging_the_model_again_makes_no_second_one(run: RunBuilder, tracking_uri: str) -> None:
    best, _ = commit_digits(run)
    assert log_best(run, tracking_uri, best) == log_best(run, tracking_uri, best)
    client = MlflowClient(tracking_uri)
    (model,) = client.search_logged_models(["1"])
    assert len(model.metrics) == 1


@pytest.mark.slow
def test_altered_weights_are_not_logged(
    run: RunBuilder, tracking_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    best, _ = commit_digits(run)
    key = f"checkpoints/{best.name}/model.safetensors"
    data = bytearray(run.folder.store.read(key))
    data[-1] ^= 1
    run.folder.store.write(key, bytes(data))
    assert log_best(run, tracking_uri, best) == ""
    assert "digest" in caplog.text


@pytest.mark.promise("model-pinned")
def test_a_checkpoint_is_pinned_lastingly_before_its_model_is_there(
    run: RunBuilder, tracking_uri: str
) -> None:
    best, _ = commit_digits(run)
    seen: list[list[str]] = []

    class Watching(MlflowTracker):
        def model(self, model: TrackedModel, files: ModelFiles | None = None) -> str:
            if files:
                seen.append([found.checkpoint for found in valid_pins(run.folder.store)])
            return super().model(model, files)

    run.outcome(best, {"accuracy": 0.75})
    assert not list(valid_pins(run.folder.store))
    for _ in range(2):
        mirrored(run.folder, tracking_uri, load_tracker=lambda: Watching)
    assert seen == [[best.name], [best.name]]
    (found,) = valid_pins(run.folder.store)
    assert found.pin is not None
    assert (found.who, found.pin.holder) == (MLFLOW_MODEL, None)


@pytest.mark.promise("release-models")
def test_only_models_without_a_registered_version_are_let_go(
    run: RunBuilder, tracking_uri: str
) -> None:
    best, model = commit_digits(run)
    later = run.commit(range(12, 14), finished=True, model=model)
    aliased = run.commit(range(14, 16), finished=True, model=model)
    never_logged = run.commit(range(16, 18), finished=True, model=model)
    model_uris = [log_best(run, tracking_uri, one) for one in (best, later, aliased)]
    url = run.folder.url
    unregistered = unregistered_checkpoints(url, tracking_uri)
    assert unregistered == [best.name, later.name, aliased.name]
    assert never_logged.name not in unregistered
    client = MlflowClient(tracking_uri, tracking_uri)
    ids = [uri.removeprefix("models:/") for uri in model_uris]
    # By its address, and by the folder of its files.
    register(tracking_uri, model_uris[1])
    location = client.get_logged_model(ids[2]).artifact_location
    version = client.create_model_version("digits", location)
    client.set_registered_model_alias("digits", "champion", version.version)
    assert unregistered_checkpoints(url, tracking_uri) == [best.name]
    client.delete_model_version("digits", version.version)
    assert unregistered_checkpoints(url, tracking_uri) == [best.name, aliased.name]
    client.delete_logged_model(ids[0])
    # Of a model that is gone nothing is known: what was registered from it may be elsewhere.
    assert unregistered_checkpoints(url, tracking_uri) == [aliased.name]


@pytest.mark.slow
def test_a_version_whose_source_only_contains_the_models_id_is_of_another_model(
    run: RunBuilder, tracking_uri: str
) -> None:
    best, model = commit_digits(run)
    later = run.commit(range(12, 14), finished=True, model=model)
    model_id, other = (
        log_best(run, tracking_uri, one).removeprefix("models:/") for one in (best, later)
    )
    client = MlflowClient(tracking_uri, tracking_uri)
    client.create_registered_model("copies")
    client.create_model_version("copies", f"s3://bucket/copy-of-{model_id}/model")
    client.create_model_version("copies", f"s3://bucket/{model_id}/models/{other}/artifacts")
    assert unregistered_checkpoints(run.folder.url, tracking_uri) == [best.name]


A, B = f"m-{'a' * 32}", f"m-{'b' * 32}"


@pytest.mark.parametrize(
    ("recorded", "source", "expected"),
    [
        (A, None, A),
        (A, f"models:/{B}", A),
        (None, f"models:/{A}", A),
        ("", f"mlflow-artifacts:/1/models/{A}/artifacts", A),
        (None, f"file:///home/{B}/models/{A}/artifacts/model", A),
        (None, f"s3://bucket/copy-of-{A}/model", None),
        (None, f"s3://bucket/{A}0/model", None),
        (None, "s3://bucket/model", None),
        (None, None, None),
    ],
)
def test_a_version_points_to_the_model_whose_whole_id_its_source_has(
    recorded: str | None, source: str | None, expected: str | None
) -> None:
    assert model_id_of(recorded, source) == expected


@pytest.mark.slow
def test_another_mlflow_lets_nothing_go(
    run: RunBuilder, tracking_uri: str, empty_database: Path
) -> None:
    best, _ = commit_digits(run)
    log_best(run, tracking_uri, best)
    assert unregistered_checkpoints(run.folder.url, f"sqlite:///{empty_database}") == []


def test_an_mlflow_that_cannot_be_asked_is_an_error_that_shows_no_password(
    run: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError, match="cannot tell which models are registered") as raised:
        unregistered_checkpoints(run.folder.url, "http://me:secret@127.0.0.1:9")
    assert "secret" not in str(raised.value)


PLAIN_WORKLOAD = """
import numpy as np
import torch
from train_core import ArrayDataset, Workload


class Line(Workload):
    target_columns = ("y",)

    def model(self):
        return torch.nn.Linear(2, 1)

    def dataset(self, split):
        x = np.arange(6.0, dtype=np.float32)
        return ArrayDataset(age=x, name=np.array(list("abcdef")), y=2 * x)

    def prepare(self, columns, random):
        lengths = np.array([len(name) for name in columns["name"]], np.float32)
        return {"inputs": torch.from_numpy(np.stack([columns["age"], lengths], axis=1))}

    def predictions(self, outputs):
        return {"prediction": outputs[:, 0]}
"""

LOADER = """
import sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
rows = [{"age": 1.0, "name": "x"}, {"age": 2.0, "name": "yy"}]
import pandas as pd
print(model.predict(pd.DataFrame(rows))["prediction"].tolist())
"""


@pytest.mark.promise("model-code")
def test_a_users_module_travels_with_the_model_and_nothing_is_pickled(
    tmp_path: Path, tracking_uri: str
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "line_workload.py").write_text(PLAIN_WORKLOAD)
    sys.path.insert(0, str(code))
    try:
        config = TrainConfig(workload="line_workload:Line", monitor="validation/loss")
        run = RunBuilder(RunFolder(str(tmp_path / "runs"), "line"), config)
        model = torch.nn.Linear(2, 1)
        best = run.commit(range(1, 3), finished=True, model=model)
        model_uri = log_best(run, tracking_uri, best)
    finally:
        sys.path.remove(str(code))
        del sys.modules["line_workload"]
    assert not list(tmp_path.rglob("*.pkl"))
    code_paths = [path for path in tmp_path.rglob("code") if path.parent.name == "artifacts"]
    assert [sorted(one.name for one in path.iterdir()) for path in code_paths] == [
        ["line_workload.py", "train_core"]
    ]
    check_served_elsewhere(tracking_uri, model_uri, model, tmp_path)


def check_served_elsewhere(uri: str, model_uri: str, model: torch.nn.Module, folder: Path) -> None:
    """The model predicts the same in a process without the tests' path, and without a pickle."""
    inherited = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")
    }
    environment = inherited | {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    command = [sys.executable, "-c", LOADER, uri, model_uri]
    shown = commands.succeed(command, cwd=folder, env=environment).stdout
    with torch.inference_mode():
        expected = model(torch.tensor([[1.0, 1.0], [2.0, 2.0]]))[:, 0].tolist()
    assert json.loads(shown.splitlines()[-1]) == expected


def registered(uri: str, model_uri: str) -> MlflowClient:
    """A client of a server where version 1 of `digits`, the champion, is that model."""
    client = MlflowClient(uri, uri)
    # As a user does it: this way MLflow looks for the model at its one address of the process.
    register(uri, model_uri)
    client.set_registered_model_alias("digits", "champion", "1")
    return client


@pytest.mark.promise("init-from")
def test_a_registered_model_says_of_which_checkpoint_it_is(
    run: RunBuilder, tracking_uri: str
) -> None:
    best, _ = commit_digits(run)
    model_uri = log_best(run, tracking_uri, best)
    registered(tracking_uri, model_uri)
    digest = run.folder.find(best.name).digest
    for what in ("models:/digits/1", "models:/digits@champion", model_uri):
        origin = find_origin(what, "", tracking_uri)
        assert (origin.uri, origin.digest) == (best.uri, digest)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("models:/digits/2", "'models:/digits/2' in MLflow at"),
        ("models:/digits@challenger", "challenger"),
        ("models:/unknown/1", "unknown"),
        ("models:/digits/latest", "names no model"),
        ("models:/foreign/1", "was not logged by evertrain"),
    ],
)
@pytest.mark.slow
def test_a_model_that_tells_of_no_checkpoint_is_refused(
    what: str, told: str, run: RunBuilder, tracking_uri: str
) -> None:
    best, _ = commit_digits(run)
    client = registered(tracking_uri, log_best(run, tracking_uri, best))
    client.create_registered_model("foreign")
    client.create_model_version("foreign", "s3://bucket/model")
    with pytest.raises(TrackingError, match=told):
        find_origin(what, "", tracking_uri)


def test_a_registered_model_of_another_checkpoint_is_refused(
    run: RunBuilder, tracking_uri: str
) -> None:
    best, _ = commit_digits(run)
    client = registered(tracking_uri, log_best(run, tracking_uri, best))
    client.set_model_version_tag("digits", "1", "evertrain.checkpoint_digest", "0" * 64)
    with pytest.raises(ConfigError, match="not the checkpoint that the registered model was made"):
        find_origin("models:/digits/1", "", tracking_uri)


def test_a_database_that_is_missing_is_refused_and_not_created(tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    with pytest.raises(TrackingError, match="there is no MLflow database"):
        find_origin("models:/digits/1", "", f"sqlite:///{missing}")
    assert not missing.exists()


def test_a_registry_that_is_down_may_answer_later(server: MlflowServer) -> None:
    with pytest.raises(StorageError, match="'models:/digits/1' in MLflow at"):
        find_origin("models:/digits/1", "", server.uri)
