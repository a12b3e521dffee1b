"""A flow run's last state says by its name and its message how the night ended."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from prefect.client.schemas.objects import StateType

from evertrain_flows.flow_runs.states import EndName, failure_name, naming_its_end, nothing_begun
from evertrain_flows.retrain import retrain
from evertrain_tasks.retries import is_transient
from tests.champion.samples import approval, decision, entry
from tests.flows.deployment.deployed import AUTOMATIONS
from tests.flows.test_results import PREDICTIONS, REPORT
from train_core.errors import (
    CheckedOnlyError,
    CheckpointError,
    ConfigError,
    DataError,
    EvertrainError,
    FencedError,
    GaveUpError,
    HiddenLoginError,
    JobEndedError,
    NotFiniteError,
    ResourceError,
    RunBusyError,
    RunConflictError,
    StageError,
    StoppedError,
    StorageError,
    TrackingError,
    UnchangedError,
    UnsavedError,
    UserCodeError,
    WorkloadError,
)
from train_core.policy.champion.gate_decision import Outcome
from train_core.results import GateResult

TABLE: list[tuple[EvertrainError, EndName, bool]] = [
    # The error, the name of the flow run's end, and whether Prefect tries the task again.
    (DataError("a.parquet is torn"), EndName.BAD_DATA, False),
    (UserCodeError("train", "KeyError: 'lr'"), EndName.BAD_CODE, False),
    (WorkloadError("no such module"), EndName.BAD_CODE, False),
    (ConfigError("no"), EndName.BAD_INPUT, False),
    (HiddenLoginError("s3://host/x"), EndName.BAD_INPUT, False),
    (RunConflictError("r", {}), EndName.BAD_INPUT, False),
    (ResourceError("too many workers"), EndName.BAD_INPUT, False),
    (TrackingError("401"), EndName.BAD_INPUT, False),
    (NotFiniteError(3, float("nan"), None), EndName.DIVERGED, False),
    (RunBusyError("r", "somebody"), EndName.BUSY, False),
    (CheckpointError("torn"), EndName.FAILED, False),
    (FencedError(1, 2), EndName.FAILED, False),
    (GaveUpError("train", "died four times"), EndName.FAILED, False),
    (UnsavedError(3600, 7, None, "the disk is full"), EndName.FAILED, False),
    (StorageError("503"), EndName.FAILED, True),
    (StageError("train", "Ray did not start"), EndName.FAILED, True),
    (JobEndedError("train", "no answer"), EndName.FAILED, True),
]


@pytest.mark.promise("named-endings", "who-tries-again")
@pytest.mark.parametrize(("error", "name", "is_retried"), TABLE, ids=lambda one: repr(one)[:40])
def test_each_failure_has_one_name_and_one_answer_to_whether_it_is_tried_again(
    error: EvertrainError, name: EndName, is_retried: bool
) -> None:
    assert (failure_name(error), is_transient(error)) == (name, is_retried)
    assert not (is_retried and name is not EndName.FAILED), "what a person mends is not retried"

    @naming_its_end
    def fails() -> None:
        raise error

    state: Any = fails()
    assert (state.type, state.name, state.message) == (StateType.FAILED, name, str(error))
    assert state.data is error


KEPT = decision(outcome=Outcome.KEEP, reasons=("accuracy is 0.01 lower",))
ASKS = decision(outcome=Outcome.ASK, reasons=("the data have changed",))


@pytest.mark.promise("named-endings")
@pytest.mark.parametrize(
    ("gate", "name", "message", "scored"),
    [
        (
            {"decision": decision(), "entry": entry()},
            EndName.PROMOTED,
            "models:/Digits/1 became champion: it is better",
            "which became champion",
        ),
        (
            {"decision": KEPT},
            EndName.REFUSED,
            "models:/Digits/1 is not promoted: accuracy is 0.01 lower",
            "which the gate refused",
        ),
        (
            {"decision": ASKS, "approval": approval(ASKS, is_approved=False)},
            EndName.REJECTED,
            'models:/Digits/1 is rejected by ann ("looked at it"): the data have changed',
            "which a person rejected",
        ),
        (
            {"decision": ASKS},
            EndName.AWAITS_APPROVAL,
            "models:/Digits/1 waits for approval: the data have changed",
            "which waits for approval",
        ),
    ],
    ids=lambda one: str(one)[:20],
)
def test_a_night_with_a_gate_is_named_after_what_became_of_the_version(
    gate: dict[str, Any], name: EndName, message: str, scored: str
) -> None:
    made = GateResult(decision_uri="/runs/x", **gate)
    report = REPORT.model_copy(update={"gate": made, "predictions": PREDICTIONS})
    state: Any = naming_its_end(lambda: report)()
    found = (state.type, state.name, state.message, state.data)
    assert found == (StateType.COMPLETED, name, message, report)
    by = f"scored with models:/Digits/1 ({PREDICTIONS.checkpoint.name}), {scored}"
    assert report.scored_with == by
    assert REPORT.model_copy(update={"predictions": None}).scored_with == ""


@pytest.mark.promise("named-endings")
def test_a_night_without_a_gate_is_completed_as_ever() -> None:
    state: Any = naming_its_end(lambda: REPORT)()
    assert (state.type, state.name, state.data) == (StateType.COMPLETED, "Completed", REPORT)


@pytest.mark.promise("named-endings")
def test_a_night_without_news_is_skipped_and_a_check_is_completed() -> None:
    skipped = nothing_begun(UnchangedError("last"))
    assert (skipped.type, skipped.name) == (StateType.COMPLETED, "Skipped")
    assert skipped.message == "no new data since run last: nothing is trained"
    assert nothing_begun(CheckedOnlyError("plan")).name == "Completed"


def test_prefect_knows_the_parameters_of_a_flow_whose_end_is_named() -> None:
    asked = {"parameters": {"epochs": 1}}
    assert retrain.validate_parameters(asked)["parameters"].epochs == 1


def test_a_stop_is_not_named_here() -> None:
    @naming_its_end
    def stops() -> None:
        raise StoppedError("r", 3)

    with pytest.raises(StoppedError):
        stops()


@pytest.mark.promise("automation", "named-endings")
def test_a_run_that_ended_by_any_name_is_not_taken_for_dead() -> None:
    """An event is called after the state's name: an end that is not expected would be a death."""
    automations = yaml.safe_load(AUTOMATIONS.read_text())["automations"]
    (notices,) = (one for one in automations if one["name"] == "evertrain-notice-death")
    expected = set(notices["trigger"]["expect"])
    assert {f"prefect.flow-run.{name}" for name in EndName} <= expected
