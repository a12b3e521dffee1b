"""A training that would come to nothing new is not begun, and what is new is said."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.services import free_port
from tests.champion.samples import add_events, approval, decision, register, version, write_earlier
from tests.rank import alone, growing
from tests.ranks.without_ray import stages_without_ray
from train_core.config import TrainConfig
from train_core.errors import ConfigError, UnchangedError
from train_core.policy.champion.gate_decision import Outcome
from train_core.requests import DriverRequest, PipelineRequest, Prepared
from train_core.storage.records.names import REPORT_JSON, RUN_JSON
from train_core.storage.run_folder import RunFolder

CONFIG = {"workload": "tests.rank.tiny:Tiny", "batch_size": 32, "gpus_per_worker": 0}
Altered = Callable[[RunFolder], None]


def request(storage: Path, run: str, *, source: str = "test", **config: Any) -> DriverRequest:
    return DriverRequest(
        storage=str(storage),
        run=run,
        config=TrainConfig(**CONFIG | config),
        pipeline=PipelineRequest(infer_input=source),
        skip_unchanged=True,
    )


def prepare(asked: DriverRequest) -> Prepared:
    """What the checks find; a run that is created is left to whoever trains it."""
    driver = stages_without_ray(asked)
    try:
        return Prepared.model_validate(driver.prepare())
    finally:
        driver.close("KILLED")


def finish(asked: DriverRequest) -> RunFolder:
    """The run, prepared, trained and reported."""
    folder = RunFolder(asked.storage, asked.run)
    assert prepare(asked).unchanged_since == ""
    alone.run(folder, 1, **asked.config.model_dump() | {"num_shards": asked.config.shards})
    folder.store.write(REPORT_JSON, b'{"train": {"step": 5}}')
    return folder


@pytest.fixture
def last(tmp_path: Path) -> RunFolder:
    """The last finished run."""
    return finish(request(tmp_path / "runs", "last"))


def storage_of(folder: RunFolder) -> Path:
    return Path(folder.storage)


@pytest.mark.parametrize("is_refused", [False, True], ids=["unchanged", "refused"])
def test_a_request_that_begins_nothing_leaves_no_mirror(last: RunFolder, is_refused: bool) -> None:
    storage = storage_of(last)
    changes = {"run": "next", "settings": {"no_such": 1}} if is_refused else {"run": "next"}
    asked = request(storage, **changes)
    mirrored = asked.model_copy(update={"tracking_uri": f"http://127.0.0.1:{free_port()}"})
    driver = stages_without_ray(mirrored)
    if is_refused:
        with pytest.raises(ConfigError, match="no_such"):
            driver.prepare()
    else:
        assert driver.prepare().unchanged_since == "last"
    # One that still loads MLflow ends after that.
    for thread in threading.enumerate():
        if thread.name == "mirror":
            thread.join(30)
            assert not thread.is_alive()
    driver.close("KILLED")


@pytest.mark.promise("skip-unchanged")
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_workers": 2, "cpus_per_worker": 0.5},
        {"keep_last": 7, "checkpoint_every_steps": 3, "grace_s": 1, "strict": True},
        # The workload's own defaults, written out.
        {"settings": {"num_train": 150, "learning_rate": 0.01}},
    ],
)
def test_what_decides_nothing_may_change_and_no_run_is_begun(
    last: RunFolder, config: dict[str, Any]
) -> None:
    prepared = prepare(request(storage_of(last), "next", **config))
    assert prepared.unchanged_since == "last"
    assert [path.name for path in storage_of(last).iterdir()] == ["last"]


@pytest.mark.promise("skip-unchanged")
@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"settings": {"num_train": 160}}, "new data: train 160 samples, not 150; settings."),
        ({"settings": {"learning_rate": 0.02}}, "settings.learning_rate changed (0.01 to 0.02)"),
        ({"epochs": 2}, "epochs changed (1 to 2)"),
        ({"max_steps": 3}, "max_steps changed (0 to 3)"),
        ({"seed": 1}, "seed changed (0 to 1)"),
        ({"num_shards": 2}, "num_shards changed (1 to 2)"),
    ],
)
def test_what_counts_is_trained_again_and_told(
    last: RunFolder, config: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "train_core.driver")
    asked = request(storage_of(last), "next", **config)
    assert prepare(asked).unchanged_since == ""
    assert f"since run last: {told}" in caplog.text
    assert RunFolder(asked.storage, "next").exists()


def edit_record(**changed: Any) -> Altered:
    def edit(folder: RunFolder) -> None:
        record = json.loads(folder.store.read(RUN_JSON))
        folder.store.write(RUN_JSON, json.dumps(record | changed).encode())

    return edit


def extend(folder: RunFolder) -> None:
    """Ask for more, and train half of it."""
    asked = request(storage_of(folder), folder.name, epochs=3)
    prepare(asked)


@pytest.mark.parametrize(
    ("alter", "told"),
    [
        (edit_record(code={}), "code: commit changed; code: evertrain changed"),
        (edit_record(modules={}, packages={}), "the run before recorded the digest of one file"),
        (edit_record(packages={"torchmetrics": "0.1"}), "torchmetrics changed ('0.1' to "),
        (edit_record(fingerprint={"torch": "1.0"}), "torch changed ('1.0' to "),
        (edit_record(config={**CONFIG, "settings": {"gone": 1}}), "settings.gone changed (1 to"),
        (edit_record(pipeline={"dry_run": True}), "no run of tests.rank.tiny:Tiny has finished"),
        (edit_record(format=7), "run 'last' cannot be read"),
        (lambda folder: folder.store.delete(REPORT_JSON), "no run of tests.rank.tiny:Tiny has"),
        (extend, "no run of tests.rank.tiny:Tiny has finished"),
    ],
)
def test_another_past_is_trained_again_and_told(
    last: RunFolder, alter: Altered, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    alter(last)
    assert prepare(request(storage_of(last), "next")).unchanged_since == ""
    assert told in caplog.text


@pytest.mark.promise("skip-unchanged")
@pytest.mark.parametrize("is_before", [False, True], ids=["log", "before"])
@pytest.mark.parametrize("answer", [None, True, False], ids=["waiting", "approved", "rejected"])
def test_a_run_whose_version_a_person_has_to_approve_has_the_data_without_a_report(
    last: RunFolder, answer: bool | None, is_before: bool
) -> None:
    last.store.delete(REPORT_JSON)
    made = decision(version(3, "last"), outcome=Outcome.ASK)
    answers = [] if answer is None else [approval(made, is_approved=answer)]
    if is_before:
        write_earlier(last.storage, made, *answers)
    else:
        register(last, made.challenger)
        add_events(last.storage, made, *answers)
    prepared = prepare(request(storage_of(last), "next"))
    assert prepared.unchanged_since == "last"
    waits = "run last, whose version 3 waits for approval, has it"
    said = f"no new data: {waits}" if answer is None else "no new data since run last"
    with pytest.raises(UnchangedError) as raised:
        prepared.check_begun()
    assert str(raised.value) == f"{said}: nothing is trained"
    # Other data are trained.
    assert prepare(request(storage_of(last), "other", seed=1)).unchanged_since == ""


@pytest.mark.promise("skip-unchanged")
def test_a_module_that_the_workload_imports_is_something_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    own = f"own_{uuid.uuid4().hex}"
    model = tmp_path / f"{own}_model.py"
    model.write_text("WIDTH = 16\n")
    work = f"from tests.rank.tiny import Tiny as Own\nfrom {own}_model import WIDTH\n"
    (tmp_path / f"{own}.py").write_text(work)
    storage, named = tmp_path / "runs", {"workload": f"{own}:Own"}
    finish(request(storage, "last", **named))
    assert prepare(request(storage, "same", **named)).unchanged_since == "last"
    model.write_text("WIDTH = 512\n")
    caplog.set_level(logging.INFO, "train_core.driver")
    assert prepare(request(storage, "next", **named)).unchanged_since == ""
    assert f"changed since run last: code: {own}_model changed. This run trains" in caplog.text


def test_a_run_that_exists_is_always_continued(last: RunFolder) -> None:
    storage = storage_of(last)
    interrupted = request(storage, "interrupted")
    prepare(interrupted.model_copy(update={"skip_unchanged": False}))
    for run in ("interrupted", "last"):
        prepared = prepare(request(storage, run))
        assert (prepared.resumed, prepared.unchanged_since) == (True, "")


def test_it_is_the_last_finished_run_that_counts(last: RunFolder, tmp_path: Path) -> None:
    storage = storage_of(last)
    finish(request(storage, "newer", seed=1))
    assert prepare(request(storage, "next", seed=1)).unchanged_since == "newer"
    assert prepare(request(storage, "back")).unchanged_since == ""


def test_a_dry_run_and_who_does_not_ask_are_never_skipped(last: RunFolder) -> None:
    asked = request(storage_of(last), "next")
    for changed in ({"skip_unchanged": False}, {"dry_run": True}):
        assert prepare(asked.model_copy(update=changed)).unchanged_since == ""
        shutil.rmtree(Path(asked.storage, "next"))


def test_files_that_arrived_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, data = tmp_path / "runs", str(tmp_path / "data")
    named = {"workload": "tests.rank.growing:Named", "settings": {"data": data}}
    growing.write_splits(data)
    finish(request(storage, "last", **named))
    assert prepare(request(storage, "same", **named)).unchanged_since == "last"
    growing.add_files(data)
    caplog.set_level(logging.INFO, "train_core.driver")
    assert prepare(request(storage, "next", **named)).unchanged_since == ""
    counted = "test 1 file more, train 1 file more, validation 1 file more"
    assert f"changed since run last: new data: {counted}. This run trains" in caplog.text


def test_new_files_to_score_are_something_new(tmp_path: Path) -> None:
    storage, arrived = tmp_path / "runs", tmp_path / "arrived"
    arrived.mkdir()

    def arrive(name: str) -> None:
        pq.write_table(pa.table({"x": [[0.0] * 8]}), arrived / name)

    arrive("monday.parquet")
    finish(request(storage, "last", source=str(arrived)))
    assert prepare(request(storage, "a", source=str(arrived))).unchanged_since == "last"
    one = str(arrived / "monday.parquet")
    assert prepare(request(storage, "b", source=one)).unchanged_since == ""
    arrive("tuesday.parquet")
    assert prepare(request(storage, "c", source=str(arrived))).unchanged_since == ""
