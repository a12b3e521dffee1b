"""The proof that a user makes: it finds a defect, names it, and lets a good workload pass."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rank.tiny import PlainDataset, Tiny, TinySettings, TinyStream
from train_core.client.verify_resume import VerifyResumeRequest, verify_resume
from train_core.datasets.arrays import ArrayDataset
from train_core.datasets.protocols import fetch, is_stream
from train_core.differences import FirstDifference
from train_core.errors import ConfigError, StageError
from train_core.rank.loaded_workload import LoadedWorkload
from train_core.requests import StandaloneTask
from train_core.storage.run_folder import RunFolder
from train_core.tools.standalone import Beginning, shortened
from train_core.workload import indexed, load_split

pytestmark = pytest.mark.timeout(240)


def request(storage: Path | str, name: str = "Tiny", **changes: Any) -> VerifyResumeRequest:
    # 150 samples would be 5 steps an epoch: the proof cuts them to 4, so it crosses two ends.
    asked = {"steps": 8, "kill_after": 5, "workload": f"tests.rank.tiny:{name}"}
    return VerifyResumeRequest(storage=str(storage), **asked | changes)


@pytest.mark.slow
def test_a_good_workload_is_found_identical_on_other_workers(tmp_path: Path) -> None:
    shown = []
    verdict = verify_resume(request(tmp_path), tmp_path, lambda *told: shown.append(told))
    assert verdict.identical
    # A checkpoint every second step; the kill came in the step after the fifth.
    assert (verdict.killed_after, verdict.resumed_after) == (5, 4)
    assert verdict.comparison.steps == [2, 4, 6, 8]
    assert (verdict.comparison.num_entries, verdict.comparison.num_validations) == (10, 2)
    phases = {("undisturbed", 8), ("killed", 5), ("resumed", 8), ("in place", 8), ("plain", 8)}
    assert phases <= set(shown)
    assert (verdict.is_exact, verdict.not_plain, verdict.cause) == (True, "", "")
    assert verdict.in_place == verdict.comparison
    assert verdict.not_in_place == ""

    resumed = RunFolder(str(tmp_path), "resumed")
    assert {c.name.step: c.name.attempt for c in resumed.checkpoints()} == {2: 1, 4: 1, 6: 2, 8: 2}
    killed = StandaloneTask.model_validate_json((tmp_path / "killed.json").read_text())
    assert killed.config.num_workers == 2
    assert "SIGKILL" in (tmp_path / "killed.log").read_text()
    # No step was done again, although the newest commit was of the step before.
    log = (tmp_path / "in-place.log").read_text()
    assert "resuming after step 5 from the memory of its workers" in log


@pytest.mark.slow
@pytest.mark.s3
def test_it_is_proved_on_the_storage_that_is_named(object_store: str, tmp_path: Path) -> None:
    storage = f"{object_store}/{uuid.uuid4().hex}"
    verdict = verify_resume(request(storage), tmp_path)
    assert verdict.identical
    assert (verdict.killed_after, verdict.resumed_after) == (5, 4)
    assert {c.name.step for c in RunFolder(storage, "resumed").checkpoints()} == {2, 4, 6, 8}
    # The logs and what the ranks were told lie here, and no run.
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.slow
def test_state_that_no_checkpoint_has_is_found_and_named(tmp_path: Path) -> None:
    verdict = verify_resume(request(tmp_path, "Forgetful", workers_after=2), tmp_path)
    assert not verdict.identical
    # Up to the forward pass of step 5 all is as it was; its hook then adds 1 where it added 5.
    assert verdict.resumed_after == 4
    assert verdict.resumed_differs == FirstDifference(step=5, name="model/0.weight")
    assert "the optimizer, `after_step`, or what runs in the backward pass" in verdict.cause
    assert verdict.comparison.metric is not None
    assert (verdict.comparison.metric.step, verdict.comparison.metric.name) == (6, "train/loss")
    assert verdict.comparison.steps == [2, 4, 6]
    assert verdict.comparison.state is not None
    first = verdict.comparison.state.tensors[0]
    assert (first.name, first.index, first.num_different) == ("model/0.weight", [0, 0], 16 * 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["StreamingTiny", "Noisy"])
def test_streams_and_hooks_that_draw_resume_exactly(name: str, tmp_path: Path) -> None:
    verdict = verify_resume(request(tmp_path, name, workers=1, workers_after=2), tmp_path)
    assert verdict.is_exact
    assert verdict.not_plain == ("a stream has an order of its own" if "Stream" in name else "")


@pytest.mark.slow
@pytest.mark.promise("verify-resume")
def test_what_a_process_keeps_beside_its_state_is_found_in_place(tmp_path: Path) -> None:
    verdict = verify_resume(request(tmp_path, "KnowsItsProcess"), tmp_path)
    assert verdict.identical
    assert not verdict.is_exact
    # The survivor, rank 1, computes the second shard, from the step in which the other one died.
    assert verdict.in_place_differs == FirstDifference(step=6, name="loss/1/0")
    assert "something stays in a process" in verdict.cause


@pytest.mark.slow
@pytest.mark.promise("verify-resume")
def test_two_runs_that_are_equally_wrong_are_found_by_plain_torch(tmp_path: Path) -> None:
    verdict = verify_resume(request(tmp_path, "CountsPasses", workers_after=2), tmp_path)
    # Each rank counts the passes of its own process: plain torch counts all of them.
    assert verdict.identical
    assert not verdict.is_exact
    assert verdict.plain_differs == FirstDifference(step=1, name="loss/1/0")
    assert "depends on the passes before it in the same process" in verdict.cause


@pytest.mark.slow
@pytest.mark.promise("verify-resume")
def test_a_batch_that_a_process_draws_for_itself_is_named(tmp_path: Path) -> None:
    verdict = verify_resume(request(tmp_path, "DrawsForItself"), tmp_path)
    assert verdict.resumed_differs == FirstDifference(step=1, name="batch/0/0/inputs")
    assert "They differ before the kill" in verdict.cause


@pytest.mark.slow
def test_a_training_that_fails_by_itself_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        StageError, match=r"undisturbed: KeyError: 'connection to gloo'.*undisturbed\.log"
    ):
        verify_resume(request(tmp_path, "Buggy"), tmp_path)
    assert "in loss" in (tmp_path / "undisturbed.log").read_text()


@pytest.mark.slow
def test_a_workload_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no Workload named 'Nobody'"):
        verify_resume(request(tmp_path, "Nobody", workers=1), tmp_path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kill_after": 1}, "kill_after is 1: .* of step 2, and before its end, step 8"),
        ({"kill_after": 8}, "kill_after is 8"),
        ({"training": {"epochs": 3, "workload": "x:Y"}}, "epochs, workload cannot be given"),
        ({"training": {"colour": "red"}}, "colour: Extra inputs are not permitted"),
        ({"workers": 33}, "batch_size 32 leaves nothing"),
    ],
)
def test_a_request_that_proves_nothing_is_refused_before_any_process_starts(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        verify_resume(request(tmp_path, **changes), tmp_path)
    # A process is told what to do in a file.
    assert list(tmp_path.iterdir()) == []


def test_the_beginning_of_data_is_as_the_whole() -> None:
    whole = ArrayDataset(x=np.arange(10))
    few = Beginning(whole, 4)
    assert len(few) == 4
    assert len(Beginning(whole, 40)) == 10
    assert fetch(few, np.array([3, 1]))["x"].tolist() == [3, 1]
    assert few.digest() == whole.digest()
    # A dataset that is read sample by sample stays one: its samples are seeded one by one.
    assert not hasattr(Beginning(PlainDataset(whole, transform=False), 4), "__getitems__")
    assert not is_stream(few)
    assert is_stream(Beginning(TinyStream(whole), 4))


def test_a_workload_keeps_all_of_its_data_when_its_training_has_the_beginning() -> None:
    workload = Tiny(TinySettings())
    whole = LoadedWorkload(workload, load_split(workload, "train"), indexed(workload, "validation"))
    few = shortened(whole, 40)
    assert (len(few.train_set), len(few.validation_set)) == (40, 40)
    assert few.workload is workload
    assert len(workload.dataset("train")) == 150
