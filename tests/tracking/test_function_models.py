"""The model of a training function's best checkpoint: what its predictor makes of the folder."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from mlflow import MlflowClient

from tests.compat.functions.digits_function import new_model
from tests.tracking.following import register
from tests.tracking.run_builder import RunBuilder
from tests.tracking.test_models import PLAIN_WORKLOAD, check_served_elsewhere, load, log_best
from train_core.config import TrainConfig
from train_core.errors import WorkloadError
from train_core.rank.data.inputs import open_input, read_input
from train_core.rank.data.recorded_workload import load_recorded
from train_core.results import CheckpointSummary
from train_core.scoring.predict import score_one_part
from train_core.storage.records.amendments import Amendment
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter
from train_core.tracking.mlflow.serving import SERVED_FILE

pytestmark = pytest.mark.usefixtures("own_threads", "as_users_modules")

FUNCTIONS = "digits_function"
FUNCTION = {
    "train_fn": f"{FUNCTIONS}:train_digits",
    "workload": "train_core.workloads.digits:Digits",
    "predictor": f"{FUNCTIONS}:predictor",
    "monitor": "loss",
}
WHOLE = {"predictor": f"{FUNCTIONS}:whole_model", "trust_pickle": True}


def digits_run(tmp_path: Path, **config: Any) -> RunBuilder:
    asked = TrainConfig(**FUNCTION | config)
    return RunBuilder(RunFolder(str(tmp_path / "runs"), "digits"), asked)


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def report(run: RunBuilder, step: int = 3, *, whole: bool = False) -> CheckpointSummary:
    """Commit what the function reports: the state of a model, or the whole of it."""
    torch.manual_seed(step)
    model = new_model()
    data = saved(model if whole else model.state_dict())
    return run.commit(
        range(step, step + 1), metrics={"loss": 0.5}, reported={"model.pt": data}, finished=True
    )


@pytest.mark.promise("function-model")
def test_the_model_predicts_what_batch_inference_predicts(
    tmp_path: Path, tracking_uri: str
) -> None:
    run = digits_run(tmp_path, eval_batch_size=100)
    best, folder = report(run), run.folder
    config = folder.record().config
    workload = load_recorded(folder, config)
    found = open_input("validation", workload, with_digests=True)
    ranges = [range(100), range(100, found.num_rows)]
    score_one_part(folder.url, config, best.name, found, ranges, "predictions/part.parquet")
    expected = pq.read_table(folder.store.path("predictions/part.parquet"))
    served = load(tracking_uri, log_best(run, tracking_uri, best))
    (rows,) = read_input(found, workload, range(found.num_rows))
    columns = rows.columns
    predicted = served.predict({"image": columns["image"]})
    assert predicted["prediction"].tolist() == expected["prediction"].to_pylist()
    assert predicted["probabilities"].tolist() == [
        np.array(row, np.float32).tolist() for row in expected["probabilities"].to_pylist()
    ]


@pytest.mark.promise("function-model")
def test_it_has_the_workloads_signature_and_names_its_predictor(
    tmp_path: Path, tracking_uri: str
) -> None:
    run = digits_run(tmp_path)
    model_uri = log_best(run, tracking_uri, report(run))
    served = load(tracking_uri, model_uri)
    assert str(served.metadata.get_input_schema()) == "['image': Tensor('uint8', (-1, 8, 8))]"
    assert served.input_example["image"].shape == (2, 8, 8)
    logged = MlflowClient(tracking_uri).get_logged_model(model_uri.removeprefix("models:/"))
    assert logged.name == "Digits-step-00000003-a0001"
    assert logged.params == {"step": "3", "epoch": "1", "samples_seen": "30"}
    assert logged.tags["evertrain.predictor"] == FUNCTION["predictor"]
    assert logged.tags["evertrain.trust_pickle"] == "False"
    assert {metric.key for metric in logged.metrics} == {"loss"}


def test_a_function_without_a_predictor_has_no_model(tmp_path: Path, tracking_uri: str) -> None:
    config = TrainConfig(train_fn=FUNCTION["train_fn"], monitor="loss")
    run = RunBuilder(RunFolder(str(tmp_path / "runs"), "digits"), config)
    assert log_best(run, tracking_uri, report(run)) == ""


@pytest.mark.slow
def test_the_newest_predictor_makes_the_model(tmp_path: Path, tracking_uri: str) -> None:
    run = digits_run(tmp_path, predictor="tests.compat.no_such_module:predictor")
    best, folder = report(run), run.folder
    assert log_best(run, tracking_uri, best) == ""
    models = []
    for name in ("predictor", "predictor", "whole_model"):
        config = TrainConfig(**FUNCTION | {"predictor": f"{FUNCTIONS}:{name}"}, trust_pickle=True)
        run.new_attempt()
        attempt = run.lease.attempt
        RunWriter(folder, attempt).amend(Amendment(config=config, pipeline={}))
        models.append(log_best(run, tracking_uri, best))
    assert models[0] == models[1] != ""
    # Another predictor makes the model again; this one finds no whole model in the folder.
    assert models[2] == ""


@pytest.mark.promise("function-model")
def test_a_pickle_in_the_folder_is_read_only_where_the_run_trusts_it(
    tmp_path: Path, tracking_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = digits_run(tmp_path, **WHOLE)
    model_uri = log_best(run, tracking_uri, report(run, whole=True))
    logged = MlflowClient(tracking_uri).get_logged_model(model_uri.removeprefix("models:/"))
    assert logged.tags["evertrain.trust_pickle"] == "True"
    images = {"image": np.zeros((2, 8, 8), np.uint8)}
    assert len(load(tracking_uri, model_uri).predict(images)) == 2
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with pytest.raises(WorkloadError, match="MLFLOW_ALLOW_PICKLE_DESERIALIZATION is false"):
        load(tracking_uri, model_uri)


def test_a_pickle_that_is_not_trusted_makes_no_model(
    tmp_path: Path, tracking_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = digits_run(tmp_path, **WHOLE | {"trust_pickle": False})
    assert log_best(run, tracking_uri, report(run, whole=True)) == ""
    assert "run with trust_pickle" in caplog.text


def test_an_altered_file_makes_no_model(
    tmp_path: Path, tracking_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = digits_run(tmp_path)
    best, store = report(run), run.folder.store
    key = f"checkpoints/{best.name}/files/model.pt"
    data = bytearray(store.read(key))
    data[-1] ^= 1
    store.write(key, bytes(data))
    assert log_best(run, tracking_uri, best) == ""
    assert "digest" in caplog.text


TRAINING = """
import ray.train
import torch


def train(config):
    pass


def new_model():
    return torch.nn.Linear(2, 1)
"""
PREDICTOR = """
import json
from line_training import new_model
from train_core import predictors


def predictor(folder):
    assert json.loads((folder / "deep/er.json").read_text()) == {"is": "there"}
    return predictors.from_state_dict(folder / "model.pt", new_model())
"""


@contextmanager
def importable(code: Path, modules: dict[str, str]) -> Iterator[None]:
    code.mkdir()
    for name, source in modules.items():
        (code / f"{name}.py").write_text(source)
    sys.path.insert(0, str(code))
    try:
        yield
    finally:
        sys.path.remove(str(code))
        for name in modules:
            sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.promise("function-model")
def test_the_code_of_the_predictor_travels_and_nothing_is_pickled(
    tmp_path: Path, tracking_uri: str
) -> None:
    modules = {
        "line_workload": PLAIN_WORKLOAD,
        "line_training": TRAINING,
        "line_predictor": PREDICTOR,
    }
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    files = {"model.pt": saved(model.state_dict()), "deep/er.json": b'{"is": "there"}'}
    with importable(tmp_path / "code", modules):
        config = TrainConfig(
            train_fn="line_training:train",
            workload="line_workload:Line",
            predictor="line_predictor:predictor",
        )
        run = RunBuilder(RunFolder(str(tmp_path / "runs"), "line"), config)
        best = run.commit(range(1, 3), finished=True, metrics={}, reported=files)
        model_uri = log_best(run, tracking_uri, best)
    artifacts = [path.parent for path in tmp_path.rglob("MLmodel")]
    (of_model,) = artifacts
    assert sorted(one.name for one in (of_model / "code").iterdir()) == [
        "line_predictor.py",
        "line_training.py",
        "line_workload.py",
        "train_core",
    ]
    assert "ray==" in (of_model / "requirements.txt").read_text()
    found = (of_model / "data").rglob("*.*")
    assert sorted(path.name for path in found) == ["er.json", "model.pt", SERVED_FILE]
    assert not list(of_model.rglob("*.pkl"))
    check_served_elsewhere(tracking_uri, model_uri, model, tmp_path)


def test_it_is_registered_as_any_other_model(tmp_path: Path, tracking_uri: str) -> None:
    run = digits_run(tmp_path)
    model_uri = log_best(run, tracking_uri, report(run))
    register(tracking_uri, model_uri)
    served = load(tracking_uri, "models:/digits/1")
    assert len(served.predict({"image": np.zeros((2, 8, 8), np.uint8)})) == 2
