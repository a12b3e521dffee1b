"""The stages of a run, each declared once: what it is given, what it gives, and what it is called.

A flow starts a stage as a task (`tasks/stages.py`), the driver carries it out
(`driver/run_stages.py`), and between the two its arguments and its answer travel as JSON. A new
stage is declared here, carried out there, and called in the flow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny

from train_core.datasets.protocols import Split
from train_core.described_errors import rebuild
from train_core.policy.end_status import EndStatus
from train_core.requests import Prepared, Request, request_of
from train_core.results import (
    Approval,
    CheckpointSummary,
    EvaluationResult,
    GateResult,
    PredictionsResult,
    Report,
    Reports,
    Result,
    TrainResult,
)
from train_core.text.shown_text import shown

_MOST_CHARS = 300

ArgumentsT = TypeVar("ArgumentsT", bound=Result)
ResultT = TypeVar("ResultT")


class Answer(BaseModel, Generic[ResultT]):
    """A stage's result, or the error that it raised."""

    # By default, a loss that is no number becomes null.
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    result: ResultT | None = None
    error: dict[str, Any] | None = None
    """As `described_errors` describes it."""

    def to_json(self) -> str:
        """The answer on one line."""
        # Not pydantic's JSON: a result has a configuration of its own, which writes null.
        return json.dumps(self.model_dump(mode="json"))

    def unwrapped(self) -> ResultT:
        """The result. Raises the error if the stage raised one."""
        if self.error is not None:
            raise rebuild(self.error)
        return cast(ResultT, self.result)


@dataclass(frozen=True)
class Stage(Generic[ArgumentsT, ResultT]):
    """A stage of a run."""

    name: str
    arguments: type[ArgumentsT]
    answer: type[Answer[ResultT]]
    title: str = ""
    """The name of its task run in Prefect, a template of `request` and `arguments`."""
    label: str = ""
    """The name under which the report has its seconds, a template of `arguments`; empty: `name`."""

    def label_of(self, arguments: ArgumentsT) -> str:
        """The label with these arguments."""
        return (self.label or self.name).format(arguments=arguments)


class NoArguments(Result):
    """Of a stage that needs nothing beyond its request."""


def _request(given: object) -> Request:
    return given if isinstance(given, Request) else request_of(given)


class PrepareArguments(Result):
    """What a driver is started with."""

    request: Annotated[SerializeAsAny[Request], BeforeValidator(_request)]


class CloseArguments(Result):
    """How the run ended, for MLflow."""

    status: EndStatus


class ReportsArguments(Result):
    """Which reports are asked for."""

    after: int
    """The step of the last one that the caller has."""
    wait_s: float
    """How long to wait for the first one, in seconds, while the training goes on."""


class EvaluateArguments(Result):
    """What is measured on which split."""

    checkpoints: list[CheckpointSummary]
    split: Split


class InferArguments(Result):
    """What is scored with which checkpoint."""

    checkpoint: CheckpointSummary
    source: str
    """A split's name, or the address of data."""

    @property
    def shown_source(self) -> str:
        """The source, an address without its login."""
        return shown(self.source, _MOST_CHARS)


class GateArguments(Result):
    """The checkpoint that is compared with the champion."""

    best: CheckpointSummary


class PromoteArguments(Result):
    """What the gate decided, and a person's answer if there is one."""

    result: GateResult
    approval: Approval | None = None


class PublishArguments(Result):
    """The results of a pipeline's stages."""

    train: TrainResult
    evaluations: list[EvaluationResult]
    best: CheckpointSummary | None
    """None: a training function reported no checkpoint."""
    predictions: PredictionsResult | None
    gate: GateResult | None = None
    seconds: dict[str, float]
    """Wall-clock seconds of each stage."""
    flow_run: str = ""
    """The flow run that ends the pipeline, in Markdown; empty: there is none."""

    @property
    def test_metrics(self) -> dict[str, float | None]:
        """Those of the best checkpoint on the test split; none if it was not measured there."""
        found = [
            one.metrics
            for one in self.evaluations
            if self.best and one.split == "test" and one.checkpoint.name == self.best.name
        ]
        return found[0] if found else {}


PREPARE = Stage("prepare", PrepareArguments, Answer[Prepared])
"""Check the request before any compute: what a driver is asked for first, once."""
CLOSE = Stage("close", CloseArguments, Answer[None])
"""End all that was begun: what a driver is asked for last."""
TRAIN = Stage("train", NoArguments, Answer[TrainResult], "train {request.run}")
"""Train to the end, from the newest good checkpoint if there is one."""
REPORTS = Stage("reports", ReportsArguments, Answer[Reports])
"""Give the reports of a training, which another call has begun, as they are committed."""
EVALUATE = Stage(
    "evaluate",
    EvaluateArguments,
    Answer[list[EvaluationResult]],
    title="evaluate {request.run} on {arguments.split}",
    label="evaluate {arguments.split}",
)
"""Measure checkpoints on a split; the results are in the order of the checkpoints."""
INFER = Stage(
    "infer",
    InferArguments,
    Answer[PredictionsResult],
    title="infer {arguments.shown_source} with {arguments.checkpoint.name}",
)
"""Score new data with a checkpoint."""
GATE = Stage("gate", GateArguments, Answer[GateResult], "gate {request.run}")
"""Register a checkpoint as a version of its model, and decide on it beside the champion."""
PROMOTE = Stage("promote", PromoteArguments, Answer[GateResult], "promote {request.run}")
"""Make the version the champion, if that was decided, or a person allows it."""
PUBLISH = Stage("publish", PublishArguments, Answer[Report], "publish {request.run}")
"""Write report.json, and the figures, the model and the outcome into MLflow."""

STAGES: tuple[Stage[Any, Any], ...] = (TRAIN, EVALUATE, INFER, GATE, PROMOTE, PUBLISH)
"""The stages that a flow starts as tasks, in the order in which a run has them first."""
