from __future__ import annotations

import json

import pytest
from prefect import Flow, Task
from prefect.serializers import JSONSerializer

from evertrain_flows.batch_inference import batch_inference
from evertrain_flows.retrain import retrain
from evertrain_tasks.prepare import prepare
from evertrain_tasks.report_predictions import report_predictions
from evertrain_tasks.retries import is_transient
from evertrain_tasks.select import select, with_metrics
from evertrain_tasks.stages import task_of
from train_core.described_errors import describe, rebuild
from train_core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EvertrainError,
    FencedError,
    GaveUpError,
    NotFiniteError,
    ResourceError,
    RunBusyError,
    RunConflictError,
    StageError,
    StorageError,
    UnchangedError,
    UnsavedError,
    UserCodeError,
)
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    PredictionsResult,
    Report,
    Result,
    Selection,
    Tracking,
    TrainResult,
)
from train_core.stages import STAGES

TASKS = [prepare, select, report_predictions, *map(task_of, STAGES)]


def checkpoint(step: int, accuracy: float | None = None) -> CheckpointSummary:
    metrics = {"validation/accuracy": accuracy}
    name = f"step-{step:08d}-a0001"
    return CheckpointSummary(name=name, uri=f"/r/{name}", step=step, epoch=1, metrics=metrics)


def evaluated(step: int, accuracy: float | None, split: str = "validation") -> EvaluationResult:
    return EvaluationResult(
        checkpoint=checkpoint(step),
        split=split,
        uri="/r/evaluations/x",
        num_samples=10,
        metrics={"accuracy": accuracy},
    )


TRAINED = TrainResult(
    run="r",
    attempt=1,
    step=20,
    epoch=2,
    samples_seen=100,
    stopped_by="epochs",
    metrics={"train/loss": None},
    samples_per_s=1.5,
    seconds=2.5,
    checkpoints=[checkpoint(20, 0.5)],
)
PREDICTIONS = PredictionsResult(checkpoint=checkpoint(20), uri="/r/p", num_rows=3, files=["a"])
TRACKING = Tracking()
REPORT = Report(
    run="r",
    uri="/r/report.json",
    workload="m:W",
    train=TRAINED,
    evaluations=[evaluated(20, 0.5)],
    best=checkpoint(20),
    test_metrics={"accuracy": 0.5},
    predictions=PREDICTIONS,
    tracking=TRACKING,
    seconds={"train": 1.0},
)


@pytest.mark.promise("json-results")
@pytest.mark.parametrize("result", [TRAINED, PREDICTIONS, REPORT, evaluated(1, None)])
def test_results_survive_prefects_json_serializer(result: Result) -> None:
    serializer: JSONSerializer[Result] = JSONSerializer()
    assert serializer.loads(serializer.dumps(result)) == result


@pytest.mark.promise("json-results")
@pytest.mark.parametrize("one", [*TASKS, retrain, batch_inference])
def test_nothing_is_ever_stored_by_pickle(one: Task | Flow) -> None:
    assert one.result_serializer == "json"


@pytest.mark.promise("json-results")
@pytest.mark.parametrize("one", TASKS)
def test_tasks_keep_no_results_that_could_be_taken_for_the_truth(one: Task) -> None:
    assert one.persist_result is False


@pytest.mark.promise("who-tries-again")
@pytest.mark.parametrize("error", [StageError("train", "died"), StorageError("503")])
def test_failures_of_the_infrastructure_are_tried_again(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.promise("who-tries-again")
@pytest.mark.parametrize(
    "error",
    [
        UserCodeError("train", "ValueError: x"),
        GaveUpError("train", "gave up after 4 tries"),
        UnsavedError(3600, 7, None, "the disk is full"),
        ConfigError("no"),
        ResourceError("no"),
        RunConflictError("r", {}),
        RunBusyError("r", "somebody"),
        FencedError(1, 2),
        NotFiniteError(3, float("nan"), None),
        CheckpointError("torn"),
        TypeError("a bug"),
    ],
)
def test_what_would_fail_again_is_not_tried_again(error: Exception) -> None:
    assert not is_transient(error)


class NoShardsError(DataError):
    """A user's own, of which the flow's process knows nothing."""


@pytest.mark.parametrize(
    "error",
    [
        *(UserCodeError("train", "x", "a traceback"), GaveUpError("train", "x"), StorageError("x")),
        *(UnsavedError(3600, 7, None, "x"), ConfigError("x"), RunConflictError("r", {})),
        *(RunBusyError("r", "x"), FencedError(1, 2), NotFiniteError(3, 1.5, None)),
        UnchangedError("r"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: EvertrainError) -> None:
    again = rebuild(json.loads(json.dumps(describe("train", error))))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_what_another_process_does_not_know_is_the_nearest_of_ours() -> None:
    again = rebuild(json.loads(json.dumps(describe("train", NoShardsError("there are none")))))
    assert (type(again), str(again)) == (DataError, "there are none")
    again = rebuild(json.loads(json.dumps(describe("train", KeyError("x")))))
    assert (type(again), str(again)) == (StageError, "train: KeyError: 'x'")


def rank(evaluations: list[EvaluationResult], order: str) -> Selection:
    return select.fn(with_metrics(evaluations), "validation/accuracy", order)


@pytest.mark.promise("best-checkpoint")
def test_the_best_checkpoint_is_the_one_that_the_evaluation_found_best() -> None:
    found = rank([evaluated(1, 0.2), evaluated(2, 0.9), evaluated(3, 0.4)], "max")
    assert [one.step for one in found.ranking] == [2, 3, 1]
    assert found.best.step == 2
    assert rank([evaluated(1, 0.2), evaluated(2, 0.9)], "min").best.step == 1


def test_ties_go_to_the_later_step_and_what_is_missing_comes_last() -> None:
    found = rank([evaluated(1, 0.5), evaluated(2, 0.5), evaluated(3, None)], "max")
    assert [one.step for one in found.ranking] == [2, 1, 3]
