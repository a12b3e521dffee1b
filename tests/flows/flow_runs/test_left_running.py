"""Which state a flow run gets that Prefect shows as running though nobody drives its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, StateType

from evertrain_flows.flow_runs.left_running import true_state
from tests.champion.samples import decision
from tests.flows.test_results import REPORT
from tests.storage.samples import record
from train_core.config import TrainConfig
from train_core.policy.champion.gate_decision import Outcome
from train_core.requests import DriverRequest
from train_core.results import GateResult
from train_core.storage.coordination import lease
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt, create_run

ENDS = {
    "FINISHED": StateType.COMPLETED,
    "KILLED": StateType.CANCELLED,
    "FAILED": StateType.FAILED,
}


def request(storage: Path, run: str = "next") -> DriverRequest:
    return DriverRequest(storage=str(storage), run=run, config=TrainConfig())


def flow_run(storage: Path, run: str, *, deployed: bool = False, **asked: Any) -> FlowRun:
    parameters = {"storage": str(storage), **asked}
    return FlowRun(
        flow_id=uuid4(),
        name=run,
        parameters={"parameters": parameters},
        deployment_id=uuid4() if deployed else None,
    )


def driven(storage: Path, run: str) -> lease.Lease:
    """A run that this process drives."""
    folder = RunFolder(str(storage), run)
    create_run(folder, record(run))
    return begin_attempt(folder)


def state_of(storage: Path, run: str, *, by: str = "next", **asked: Any) -> StateType | None:
    found = true_state(flow_run(storage, run, **asked), request(storage, by))
    return found.type if found else None


@pytest.mark.promise("prefect-put-right")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("deployed", [False, True])
def test_a_run_that_was_given_free_tells_how_it_ended(
    tmp_path: Path, end: str, *, deployed: bool
) -> None:
    held = driven(tmp_path, "night")
    assert state_of(tmp_path, "night", deployed=deployed) is None
    held.end = end
    held.release()
    # A deployment's that did not finish is run again by the automations, perhaps right now.
    is_told = not deployed or end == "FINISHED"
    assert state_of(tmp_path, "night", deployed=deployed) is (ENDS[end] if is_told else None)


@pytest.mark.promise("prefect-put-right")
def test_a_run_that_ended_unseen_has_the_name_of_what_its_gate_did(tmp_path: Path) -> None:
    held = driven(tmp_path, "night")
    of_gate = GateResult(decision_uri="/runs/x", decision=decision(outcome=Outcome.KEEP))
    report = REPORT.model_copy(update={"run": "night", "gate": of_gate})
    Store(f"{tmp_path}/night").write("report.json", report.model_dump_json().encode())
    held.end = "FINISHED"
    held.release()
    state = true_state(flow_run(tmp_path, "night"), request(tmp_path))
    assert state is not None
    assert (state.name, state.type) == ("Refused", StateType.COMPLETED)
    assert str(state.message).startswith(of_gate.summary)


def test_a_flow_that_may_be_attached_to_the_same_job_is_left_alone(tmp_path: Path) -> None:
    first = driven(tmp_path, "night")
    first.end = "KILLED"
    first.release()
    second = begin_attempt(RunFolder(str(tmp_path), "night"))
    cluster = {"ray_address": "10.0.0.1:6379"}
    assert state_of(tmp_path, "night", by="night", **cluster) is None
    second.release()


def test_a_deployment_that_names_no_storage_has_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = driven(tmp_path, "night")
    held.end = "FINISHED"
    held.release()
    found = flow_run(tmp_path, "night", deployed=True)
    del found.parameters["parameters"]["storage"]
    monkeypatch.setenv("EVERTRAIN_STORAGE", str(tmp_path))
    state = true_state(found, request(tmp_path))
    assert state is not None
    assert state.is_completed()
    monkeypatch.setenv("EVERTRAIN_STORAGE", str(tmp_path / "other"))
    assert true_state(found, request(tmp_path)) is None


def test_who_goes_on_with_a_run_looks_at_the_attempt_before_its_own(tmp_path: Path) -> None:
    first = driven(tmp_path, "night")
    first.end = "FINISHED"
    first.release()
    second = begin_attempt(RunFolder(str(tmp_path), "night"))
    assert state_of(tmp_path, "night", by="night") is StateType.COMPLETED
    # For everybody else it is driven.
    assert state_of(tmp_path, "night") is None
    second.release()


@pytest.mark.promise("prefect-put-right")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, StateType.CRASHED),
        # An automation runs it again.
        ({"deployed": True}, None),
        # Another flow may live that is attached to the job.
        ({"ray_address": "10.0.0.1:6379"}, None),
    ],
)
def test_a_run_whose_end_is_not_known_has_crashed_unless_somebody_may_go_on_with_it(
    tmp_path: Path, asked: dict[str, Any], expected: StateType | None
) -> None:
    # Given free without a word: as by an attempt that another followed.
    driven(tmp_path, "night").release()
    assert state_of(tmp_path, "night", **asked) is expected


def test_of_other_storages_and_of_what_is_no_run_nothing_is_said(tmp_path: Path) -> None:
    held = driven(tmp_path, "night")
    held.end = "FINISHED"
    held.release()
    assert true_state(flow_run(tmp_path / "other", "night"), request(tmp_path)) is None
    unknown = flow_run(tmp_path, "night")
    unknown.parameters["parameters"]["storage"] = "unheard-of://runs"
    assert true_state(unknown, request(tmp_path)) is None
    assert state_of(tmp_path, "never-begun") is None
    # The default storage, which is another one.
    assert true_state(FlowRun(flow_id=uuid4(), name="night"), request(tmp_path)) is None
