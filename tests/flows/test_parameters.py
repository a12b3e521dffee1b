from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from evertrain_flows.parameters import RetrainParameters, new_run_name
from tests.storage.samples import record
from train_core.config import TrainConfig
from train_core.policy.champion.gate_options import GateOptions
from train_core.requests import DriverRequest, PipelineRequest, RecordedPipeline
from train_core.storage.records.names import check_run_name
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run


def test_the_training_is_asked_exactly_what_the_parameters_say() -> None:
    parameters = RetrainParameters(epochs=3, settings={"width": 4}, run="r", dry_run=True)
    assert parameters.train_config() == TrainConfig(epochs=3, settings={"width": 4})


def test_the_request_carries_everything_beside_the_training() -> None:
    parameters = RetrainParameters(
        run="r", storage="s3://bucket/runs", tracking_uri="http://m", experiment="e", dry_run=True
    )
    assert parameters.request() == DriverRequest(
        storage="s3://bucket/runs",
        run="r",
        config=TrainConfig(),
        pipeline=PipelineRequest(infer_input="test"),
        tracking_uri="http://m",
        records_tracking_uri=True,
        experiment="e",
        dry_run=True,
    )


@pytest.mark.parametrize(
    ("asked", "dumped"),
    [
        ({}, {"infer_input": "test"}),
        ({"tracking_uri": ""}, {"infer_input": "test", "tracking_uri": ""}),
        (
            {"infer_input": "s3://new", "tracking_uri": "http://m"},
            {"infer_input": "s3://new", "tracking_uri": "http://m"},
        ),
    ],
)
def test_a_run_records_of_the_pipeline_what_was_asked(
    asked: dict[str, str], dumped: dict[str, str]
) -> None:
    request = RetrainParameters(run="r", gate=False, **asked).request()
    usual = {"experiment": "evertrain", "dry_run": False, "mirror_weights": "best"}
    assert request.recorded().model_dump(mode="json") == dumped | usual
    assert RecordedPipeline.read(dumped | {"earlier": 1}).model_dump(exclude_unset=True) == dumped
    assert DriverRequest.model_validate_json(request.model_dump_json()) == request


def test_a_request_has_the_gate_unless_there_is_nothing_to_compare() -> None:
    asked = {"registered_model": "Owls", "require_approval": True, "gate_minimum": 0.5}
    options = RetrainParameters(run="r", **asked).request().pipeline.gate
    assert options == GateOptions(**asked)
    for without in (
        {"gate": False},
        {"dry_run": True},
        {"train_fn": "tests.compat.functions.plain:train", "trust_pickle": False},
    ):
        assert RetrainParameters(run="r", **without).request().pipeline.gate is None


@pytest.mark.promise("no-gate")
@pytest.mark.parametrize("gate", [None, GateOptions(registered_model="Owls", min_improvement=-1)])
def test_a_run_is_continued_with_the_gate_that_it_was_begun_with(
    tmp_path: Path, gate: GateOptions | None
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    pipeline = RecordedPipeline(infer_input="test", gate=gate).model_dump(mode="json")
    create_run(folder, record().model_copy(update={"pipeline": pipeline}))
    again = RetrainParameters.of_run(folder)
    assert again.gate_options() == gate
    changed = RetrainParameters.of_run(folder, gate=True, min_improvement=0.5).gate_options()
    assert changed == (gate or GateOptions()).model_copy(update={"min_improvement": 0.5})


@pytest.mark.parametrize("name", ["a/b", "..", "", "models:/a"])
def test_a_registered_models_name_is_checked(name: str) -> None:
    if not name:
        # The workload's class, then.
        assert RetrainParameters(registered_model=name).gate_options()
        return
    with pytest.raises(ValidationError, match="cannot be a registered model"):
        RetrainParameters(registered_model=name)


def test_a_request_says_after_which_flow_run_the_run_is_named() -> None:
    assert RetrainParameters(run="r").request("one").flow_run == "one"
    assert RetrainParameters(run="r").request().flow_run == ""


def test_a_request_is_the_same_after_the_parameters_went_through_json() -> None:
    parameters = RetrainParameters(run="r", settings={"width": 4}, checkpoint_every_s=1.5)
    again = RetrainParameters.model_validate_json(parameters.model_dump_json())
    assert again.request() == parameters.request()


def test_a_relative_storage_is_made_absolute_and_a_url_is_kept() -> None:
    assert RetrainParameters(storage="runs").storage == str(Path("runs").absolute())
    assert RetrainParameters(storage="s3://bucket/x").storage == "s3://bucket/x"


def test_an_empty_storage_is_refused() -> None:
    with pytest.raises(ValidationError, match="give a path or a URL"):
        RetrainParameters(storage="")


def test_a_name_that_was_given_stays() -> None:
    assert RetrainParameters(run="mine").named("other").run == "mine"
    assert RetrainParameters().named("other").run == "other"


@pytest.mark.promise("run-names")
def test_new_names_are_usable_and_differ() -> None:
    names = {check_run_name(new_run_name("package.module:MyModel")) for _ in range(20)}
    assert len(names) == 20
    assert all(re.fullmatch(r"mymodel-\d{8}-\d{6}-[0-9a-f]{6}", name) for name in names)


@pytest.mark.promise("environment")
def test_the_environments_mlflow_is_used_and_is_no_parameter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@host/mlflow")
    parameters = RetrainParameters(run="r")
    assert "secret" not in parameters.model_dump_json()
    assert parameters.request().tracking_uri == "postgresql://me:secret@host/mlflow"
    assert RetrainParameters(run="r", tracking_uri="").request().tracking_uri == ""


@pytest.mark.promise("secrets")
def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(ValidationError, match="set MLFLOW_TRACKING_URI"):
        RetrainParameters(tracking_uri="http://me:secret@host")
    with pytest.raises(ValidationError, match="credentials in the environment"):
        RetrainParameters(storage="http://me:secret@host/runs")


def test_a_form_may_have_the_default_workload_beside_a_function() -> None:
    usual = RetrainParameters().model_dump()
    found = RetrainParameters(**{**usual, "train_fn": "mine:train"})
    assert found.workload == "mine:train"


def test_a_run_is_asked_for_another_function_by_one_parameter(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    first = TrainConfig(train_fn="mine:train")
    create_run(folder, record().model_copy(update={"config": first}))
    assert RetrainParameters.of_run(folder).train_config() == first
    other = RetrainParameters.of_run(folder, train_fn="mine:other").train_config()
    assert first.differences(other)["train_fn"] == ("mine:train", "mine:other")
