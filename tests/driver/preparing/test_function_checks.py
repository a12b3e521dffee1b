"""Before a training function is run: a dry run, and whether there would be anything new."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.compat.functions import digits_function
from tests.driver.preparing.test_unchanged import prepare
from tests.rank import growing
from train_core.config import TrainConfig
from train_core.errors import (
    CheckedOnlyError,
    ConfigError,
    UnchangedError,
    UserCodeError,
    WorkloadError,
)
from train_core.policy.champion.gate_options import GateOptions
from train_core.requests import DriverRequest, PipelineRequest
from train_core.storage.coordination.lease import acquire
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.records.manifest import CheckpointManifest
from train_core.storage.records.names import REPORT_JSON
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter
from train_core.workloads.digits import Digits

FUNCTIONS = "tests.compat.functions.digits_function"
FUNCTION = {
    "train_fn": f"{FUNCTIONS}:train_digits",
    "train_loop_config": {"epochs": 2},
    "monitor": "loss",
    "monitor_order": "min",
}
SCORED = {
    "workload": "train_core.workloads.digits:Digits",
    "predictor": f"{FUNCTIONS}:predictor",
}


class ScoredOnly(Digits):
    """Has no training split: the function has it."""

    def dataset(self, split: Any) -> Any:
        if split == "train":
            raise KeyError(split)
        return super().dataset(split)


def request(
    storage: Path, run: str = "run", gate: GateOptions | None = None, **changes: Any
) -> DriverRequest:
    fields = {"dry_run", "skip_unchanged", "tracking_uri"}
    config = {name: value for name, value in changes.items() if name not in fields}
    return DriverRequest(
        storage=str(storage),
        run=run,
        config=TrainConfig(**FUNCTION | config),
        pipeline=PipelineRequest(infer_input="test", gate=gate),
        **{name: value for name, value in changes.items() if name in fields},
    )


@pytest.mark.promise("dry-run-function")
def test_a_dry_run_checks_a_function_and_says_what_a_run_would_do(tmp_path: Path) -> None:
    prepared = prepare(request(tmp_path, dry_run=True, num_workers=1, keep_last=4))
    assert prepared.plan.splitlines() == [
        f"  train     {FUNCTIONS}:train_digits on 1 worker, each with 1 CPU",
        "  keep      the newest 4, the best 3 by loss",
        "  choose    the best by loss (min)",
        "  evaluate  nothing: there is no predictor",
        f"  store     {tmp_path}/run",
        "  mirror    nothing",
    ]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckedOnlyError, match="nothing was trained or stored"):
        prepared.check_begun()


@pytest.mark.parametrize(
    ("changes", "is_warned"),
    [
        ({"monitor": "val_loss", "monitor_order": "max"}, True),
        ({"monitor": "val_loss", "monitor_order": "min"}, False),
        ({"monitor": "accuracy", "monitor_order": "max"}, False),
    ],
)
def test_a_loss_of_which_more_is_better_is_warned_about(
    changes: dict[str, str], is_warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(request(tmp_path, dry_run=True, **changes))
    told = "the best checkpoint is the one with the highest val_loss: if lower is better, give"
    assert (told in caplog.text) == is_warned


def test_a_dry_run_with_a_predictor_names_what_is_evaluated(tmp_path: Path) -> None:
    prepared = prepare(request(tmp_path, dry_run=True, **SCORED))
    evaluated = f"those on validation ({prepared.num_samples['validation']} samples)"
    assert (
        f"  evaluate  {evaluated}, the best on test (360 samples), and score test" in prepared.plan
    )
    assert "gate" not in prepared.plan


@pytest.mark.promise("dry-run-function")
def test_a_dry_run_checks_the_gate_and_names_the_model(tmp_path: Path) -> None:
    gated = prepare(request(tmp_path, gate=GateOptions(), dry_run=True, **SCORED))
    assert "is compared with the champion of the registered model Digits" in gated.plan
    named = GateOptions(registered_model="night")
    assert "model night" in prepare(request(tmp_path, gate=named, dry_run=True, **SCORED)).plan
    unmeasured = request(tmp_path, gate=GateOptions(gate_metric="no-such"), dry_run=True, **SCORED)
    with pytest.raises(ConfigError, match="no-such"):
        prepare(unmeasured)


@pytest.mark.promise("dry-run-function")
@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"train_fn": "no_such_module:f"}, WorkloadError, "no_such_module"),
        ({**SCORED, "predictor": "no_such_module:f"}, WorkloadError, "no_such_module"),
        ({**SCORED, "settings": {"no_such": 1}}, WorkloadError, "no_such"),
        ({"num_workers": 1000}, ConfigError, "1000"),
        ({"init_from": "no-such-run"}, ConfigError, "no-such-run"),
    ],
)
def test_a_dry_run_finds_what_a_run_would_be_refused_for(
    changes: dict[str, Any], error: type[Exception], told: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=told):
        prepare(request(tmp_path, dry_run=True, **changes))
    assert list(tmp_path.iterdir()) == []


def finish(asked: DriverRequest) -> None:
    """Create the run, and commit the function's end and a report."""
    assert prepare(asked).unchanged_since == ""
    folder = RunFolder(asked.storage, asked.run)
    held = acquire(folder.store, folder.name)
    manifest = CheckpointManifest(
        created_at=datetime.now(UTC).isoformat(),
        attempt=held.attempt,
        files=(),
        step=3,
        epoch=1,
        samples_seen=0,
        metrics={"loss": 0.5},
        validated=True,
        stopped_by="function_end",
        journal=(),
    )
    RunWriter(folder, held.attempt).commit(manifest)
    folder.store.write(REPORT_JSON, b'{"train": {"step": 3}}')


def test_a_function_that_has_returned_does_not_go_on_with_another_configuration(
    tmp_path: Path,
) -> None:
    asked = request(tmp_path, train_loop_config={"epochs": 20})
    finish(asked)
    folder = RunFolder(asked.storage, asked.run)
    longer = request(tmp_path, train_loop_config={"epochs": 30})
    with pytest.raises(ConfigError) as refused:
        prepare(longer)
    assert folder.newest_request().config.train_loop_config == {"epochs": 20}
    for told in ("has returned", '{"epochs": 20}', "--init-from run", "evertrain runs fork run"):
        assert told in str(refused.value)


@pytest.mark.promise("skip-unchanged-function")
def test_nothing_is_trained_where_function_predictor_and_the_workloads_data_are_the_same(
    tmp_path: Path,
) -> None:
    finish(request(tmp_path, "last", skip_unchanged=True, **SCORED))
    prepared = prepare(request(tmp_path, "next", skip_unchanged=True, **SCORED))
    assert prepared.unchanged_since == "last"
    with pytest.raises(UnchangedError, match="since run last"):
        prepared.check_begun()
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


@pytest.mark.promise("skip-unchanged-function")
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"train_loop_config": {"epochs": 3}}, "train_loop_config changed"),
        ({"predictor": f"{FUNCTIONS}:whole_model"}, "predictor changed"),
        ({"num_workers": 2, "cpus_per_worker": 0.5}, "num_workers changed (1 to 2)"),
        ({"settings": {"width": 5}}, "settings.width changed"),
    ],
)
def test_a_function_is_trained_again_where_something_that_counts_has_changed(
    changes: dict[str, Any], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finish(request(tmp_path, "last", skip_unchanged=True, **SCORED))
    with caplog.at_level(logging.INFO):
        prepared = prepare(request(tmp_path, "next", skip_unchanged=True, **SCORED | changes))
    assert prepared.unchanged_since == ""
    assert told in caplog.text


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The files of a function, its predictor and the workload with the data: nobody's modules yet.

    Each is named as `code` of run.json names it.
    """
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    sources = {
        "workload": f"from {FUNCTIONS} import train_digits\ndef train(config):\n    pass\n",
        "predictor": f"from {FUNCTIONS} import predictor as p\ndef make(folder):\n    return p\n",
        "data": "from tests.rank.growing import Named\nclass Own(Named): ...\n",
    }
    files = {}
    for name, source in sources.items():
        files[name] = folder / f"{name}_{uuid.uuid4().hex}.py"
        files[name].write_text(source)
    return files


def own_config(own: dict[str, Path], tmp_path: Path) -> dict[str, Any]:
    data = str(tmp_path / "data")
    growing.write_splits(data)
    return {
        "train_fn": f"{own['workload'].stem}:train",
        "predictor": f"{own['predictor'].stem}:make",
        "workload": f"{own['data'].stem}:Own",
        "settings": {"data": data},
    }


@pytest.mark.promise("record")
def test_run_json_has_the_digests_of_function_predictor_and_data(
    own: dict[str, Path], tmp_path: Path
) -> None:
    asked = request(tmp_path / "runs", **own_config(own, tmp_path))
    prepare(asked)
    modules = RunFolder(asked.storage, asked.run).record().modules
    for file in own.values():
        assert modules[file.stem] == digest_of(file.read_bytes())


def test_run_json_of_a_function_without_a_predictor_has_its_own_digest_only(tmp_path: Path) -> None:
    prepare(request(tmp_path))
    modules = RunFolder(str(tmp_path), "run").record().modules
    function = Path(digits_function.__file__).read_bytes()
    assert modules[digits_function.__name__] == digest_of(function)
    assert "train_core.workloads.digits" not in modules


@pytest.mark.promise("skip-unchanged-function")
@pytest.mark.parametrize("edited", ["workload", "predictor", "data"])
def test_a_function_is_trained_again_where_a_file_of_its_code_has_changed(
    own: dict[str, Path], tmp_path: Path, edited: str, caplog: pytest.LogCaptureFixture
) -> None:
    storage, config = tmp_path / "runs", own_config(own, tmp_path)
    finish(request(storage, "last", skip_unchanged=True, **config))
    assert prepare(request(storage, "same", skip_unchanged=True, **config)).unchanged_since
    own[edited].write_text(own[edited].read_text() + "# another line\n")
    with caplog.at_level(logging.INFO):
        assert not prepare(request(storage, "next", skip_unchanged=True, **config)).unchanged_since
    assert (
        f"changed since run last: code: {own[edited].stem} changed. This run trains" in caplog.text
    )


@pytest.mark.promise("skip-unchanged-function")
def test_a_function_is_trained_again_where_files_of_its_data_arrived(
    own: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage, config = tmp_path / "runs", own_config(own, tmp_path)
    finish(request(storage, "last", skip_unchanged=True, **config))
    growing.add_files(config["settings"]["data"])
    with caplog.at_level(logging.INFO):
        assert not prepare(request(storage, "next", skip_unchanged=True, **config)).unchanged_since
    counted = "test 1 file more, train 1 file more, validation 1 file more"
    assert f"changed since run last: new data: {counted}. This run trains" in caplog.text


def test_without_a_workload_nobody_knows_whether_the_data_changed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="skip_unchanged needs workload and predictor"):
        prepare(request(tmp_path, skip_unchanged=True))


def test_a_workload_without_the_training_split_is_no_comparison(tmp_path: Path) -> None:
    scored = SCORED | {"workload": f"{__name__}:ScoredOnly"}
    assert prepare(request(tmp_path, "first", **scored)).plan == ""
    with pytest.raises(UserCodeError, match="whose train split skip_unchanged needs: KeyError"):
        prepare(request(tmp_path, "second", skip_unchanged=True, **scored))


def test_the_first_run_that_is_compared_is_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finish(request(tmp_path, "last", **SCORED))
    with caplog.at_level(logging.INFO):
        assert not prepare(request(tmp_path, "next", skip_unchanged=True, **SCORED)).unchanged_since
    assert "new data: train was not compared before" in caplog.text
