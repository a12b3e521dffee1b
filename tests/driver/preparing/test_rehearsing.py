"""The rehearsal of a run that begins: what it refuses, tells, and does not repeat."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.driver.preparing.test_unchanged import prepare
from tests.rehearsal import odd
from train_core import ArrayDataset, Batch, Split
from train_core.config import TrainConfig
from train_core.driver.preparing.preflight import check, new_record
from train_core.driver.preparing.rehearsing import rehearsed
from train_core.errors import StageError, WorkloadError
from train_core.rehearsal import rehearse
from train_core.requests import ACCEPT, DriverRequest
from train_core.storage.run_folder import RunFolder

ENDED = threading.Event()
TESTS_PROCESS = "EVERTRAIN_TESTS_PROCESS"


class Hanging(odd.Right):
    """Its loss does not come back until the test lets it."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert ENDED.wait(60)
        return super().loss(outputs, batch)


class SetByDataset(odd.Right):
    """`dataset` sets what the loss uses, on a connection that only its thread may use."""

    def dataset(self, split: Split) -> ArrayDataset:
        whole = super().dataset(split)
        self.weight = float(whole.columns["label"].mean())
        return OfThread(**whole.columns)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return super().loss(outputs, batch) * self.weight


class OfThread(ArrayDataset):
    """Read by the thread that opened it."""

    def __init__(self, **columns: Any) -> None:
        super().__init__(**columns)
        self._database = sqlite3.connect(":memory:")

    def __getitems__(self, indices: Any) -> Any:
        self._database.execute("select 1")
        assert isinstance(indices, np.ndarray)
        return super().__getitems__(indices)


class Exits(odd.Right):
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        sys.exit("no licence")


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ACCEPT)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "train_core.driver"):
        yield caplog


def request(storage: Path, run: str, name: str = "Right", **config: Any) -> DriverRequest:
    workload = name if ":" in name else f"tests.rehearsal.odd:{name}"
    given = {"workload": workload, "batch_size": 32, "gpus_per_worker": 0, "num_shards": 2}
    given |= {"monitor": "validation/loss", "monitor_order": "min"}
    return DriverRequest(storage=str(storage), run=run, config=TrainConfig(**given | config))


def begin(asked: DriverRequest) -> RunFolder:
    prepare(asked)
    return RunFolder(asked.storage, asked.run)


def rehearsals(told: pytest.LogCaptureFixture) -> int:
    return sum(message.startswith("rehearsed ") for message in told.messages)


@pytest.mark.promise("rehearsal")
def test_a_run_that_begins_is_rehearsed_once_for_the_same_code_settings_and_versions(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    first = begin(request(tmp_path, "first")).record()
    assert rehearsals(told) == 1
    assert first.rehearsed
    # Other workers are no other training.
    second = begin(request(tmp_path, "second", num_workers=2, cpus_per_worker=0.5)).record()
    assert (rehearsals(told), second.rehearsed) == (1, first.rehearsed)
    for number, changed in enumerate(
        ({"batch_size": 16}, {"precision": "bf16"}, {"num_shards": 1})
    ):
        other = begin(request(tmp_path, f"other-{number}", **changed)).record()
        assert rehearsals(told) == 2 + number
        assert other.rehearsed not in ("", first.rehearsed)
    # What is continued was rehearsed when it began.
    begin(request(tmp_path, "first"))
    assert rehearsals(told) == 4


@pytest.mark.promise("rehearsal")
def test_what_is_refused_leaves_nothing_and_can_be_accepted(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    storage = tmp_path / "runs"
    with pytest.raises(WorkloadError, match=r"'total' \(Averaged\).*--accept metric\)$"):
        begin(request(storage, "first", "WronglyMerged"))
    assert not storage.exists() or list(storage.iterdir()) == []
    accepted = begin(request(storage, "first", "WronglyMerged", accept=["metric"])).record()
    assert accepted.config.accept == ["metric"]
    assert any(message.startswith("accepted: metric 'total'") for message in told.messages)
    # Who accepted it there has accepted it there only.
    with pytest.raises(WorkloadError, match="accept metric"):
        begin(request(storage, "second", "WronglyMerged"))


@pytest.mark.promise("rehearsal")
def test_a_notice_is_told_on_the_first_night_only(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    for night in ("first", "second"):
        begin(request(tmp_path, night, "InBatch"))
    (warning,) = [one.message for one in told.records if one.levelno == logging.WARNING]
    assert "no mean over samples" in warning
    assert warning.endswith("(rehearsal; to accept it: --accept loss)")


def test_everything_can_be_accepted_also_by_the_environment(
    tmp_path: Path, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(request(tmp_path, "asked", "WronglyMerged", accept=["everything"]))
    monkeypatch.setenv(ACCEPT, "everything")
    by_environment = begin(request(tmp_path, "environment", "WronglyMerged")).record()
    assert by_environment.config.accept == ["everything"]
    assert by_environment.rehearsed == ""
    assert rehearsals(told) == 0


def test_an_error_of_the_workload_is_raised_before_anything_is_written(tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    with pytest.raises(KeyError, match="weights"):
        begin(request(storage, "first", "Broken"))
    assert not storage.exists() or list(storage.iterdir()) == []


def test_the_environment_is_read_where_a_run_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ACCEPT, " metric , loss")
    accepted = begin(request(tmp_path, "first", "WronglyMerged")).record()
    assert accepted.config.accept == ["metric", "loss"]
    monkeypatch.setenv(ACCEPT, "metrics")
    with pytest.raises(ValidationError, match="EVERTRAIN_ACCEPT names 'metrics', which no "):
        begin(request(tmp_path, "second"))
    # What was recorded before is read as it was.
    assert RunFolder(str(tmp_path), "first").record() == accepted


@pytest.mark.promise("rehearsal")
def test_a_workload_has_its_data_as_in_a_worker(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    assert begin(request(tmp_path, "first", f"{__name__}:SetByDataset")).record().rehearsed
    assert rehearsals(told) == 1


def test_an_exit_of_the_workload_is_its_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"it called sys\.exit"):
        begin(request(tmp_path, "first", f"{__name__}:Exits"))


class ElsewhereOnly(odd.Right):
    """Its loss raises in the process of the test."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert os.getpid() != int(os.environ[TESTS_PROCESS])
        return super().loss(outputs, batch)


class Dies(ElsewhereOnly):
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        os._exit(7)


class FailsElsewhere(ElsewhereOnly):
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        raise KeyError("a column that is not there")


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Parameters of a rehearsal in a process of its own."""
    monkeypatch.setenv(TESTS_PROCESS, str(os.getpid()))
    return {"rehearse_on": "gpu"}


@pytest.mark.promise("rehearsal")
def test_a_rehearsal_on_a_gpu_has_a_process_of_its_own(
    tmp_path: Path, told: pytest.LogCaptureFixture, beside: dict[str, Any]
) -> None:
    name = f"{__name__}:ElsewhereOnly"
    first = begin(request(tmp_path, "first", name, **beside)).record()
    assert first.rehearsed
    assert rehearsals(told) == 1
    tells = "not rehearsed: what is particular to GPUs: torch finds none" in told.text
    assert tells == (not torch.cuda.is_available())
    # What passed on a GPU has not passed on a CPU.
    with pytest.raises(AssertionError):
        begin(request(tmp_path, "second", name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("Exits", WorkloadError, r"it called sys\.exit"),
        ("Dies", WorkloadError, "the process that rehearsed .*Dies died with code 7"),
        ("FailsElsewhere", StageError, "KeyError: 'a column that is not there'"),
    ],
)
def test_what_happens_in_its_process_is_raised_by_the_driver(
    tmp_path: Path, beside: dict[str, Any], name: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        begin(request(tmp_path, "first", f"{__name__}:{name}", **beside))


def test_a_rehearsal_on_a_gpu_that_does_not_come_back_is_ended(
    tmp_path: Path, told: pytest.LogCaptureFixture, beside: dict[str, Any]
) -> None:
    asked = request(tmp_path, "first", f"{__name__}:Hanging", **beside)
    checked = check(RunFolder(asked.storage, asked.run), asked)
    record = new_record(asked, asked.config, checked.datasets)
    found = rehearsed(asked.storage, record, asked.config, checked, within_s=0.2)
    assert found.rehearsed == ""
    assert "was not rehearsed: it has not ended within 0 s. To leave" in told.text
    assert multiprocessing.active_children() == []


def test_what_was_cut_short_is_tried_again(
    tmp_path: Path, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearse, "_MOST_S", -1.0)
    assert begin(request(tmp_path, "first")).record().rehearsed == ""
    monkeypatch.undo()
    monkeypatch.delenv(ACCEPT)
    assert begin(request(tmp_path, "second")).record().rehearsed
    assert rehearsals(told) == 2


def test_a_model_of_fsdp_is_not_made_in_the_driver(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    begin(request(tmp_path, "first", "Broken", strategy="fsdp"))
    assert "with strategy fsdp the model may not fit into one process" in told.text


@pytest.mark.promise("rehearsal")
def test_a_hook_that_does_not_come_back_holds_nothing_up(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    asked = request(tmp_path, "first", f"{__name__}:Hanging")
    checked = check(RunFolder(asked.storage, asked.run), asked)
    record = new_record(asked, asked.config, checked.datasets)
    try:
        found = rehearsed(asked.storage, record, asked.config, checked, within_s=0.2)
    finally:
        ENDED.set()
    assert found.rehearsed == ""
    assert "was not rehearsed: it has not ended within 0 s" in told.text
    for thread in threading.enumerate():
        if thread.name == "rehearsal":
            thread.join(60)
            assert not thread.is_alive()
