"""The stages of a run, each declared once: what it is given, what it gives, and what it is called.

A flow starts a stage as a task (`tasks/stages.py`), the driver carries it out
(`engine/driver/stages.py`), and between the two its arguments and its result travel as JSON. A new
stage is declared here, carried out there, and called in the flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from train_core.datasets.protocols import Split
from train_core.results import (
    Approval,
    CheckpointSummary,
    EvaluationResult,
    GateResult,
    PredictionsResult,
    Report,
    Result,
    TrainResult,
)
from train_core.text.shown_text import shown

_MOST_CHARS = 300

ArgumentsT = TypeVar("ArgumentsT", bound=Result)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Stage(Generic[ArgumentsT, ResultT]):
    """A stage of a run."""

    name: str
    arguments: type[ArgumentsT]
    result: TypeAdapter[ResultT]
    title: str
    """The name of its task run in Prefect, a template of `request` and `arguments`."""
    label: str = ""
    """The name under which the report has its seconds, a template of `arguments`; empty: `name`."""

    def label_of(self, arguments: ArgumentsT) -> str:
        """The label with these arguments."""
        return (self.label or self.name).format(arguments=arguments)

    def result_of(self, document: Any) -> ResultT:
        """The result that came as JSON."""
        return self.result.validate_python(document)


class NoArguments(Result):
    """Of a stage that needs nothing beyond its request."""


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
    best: CheckpointSummary
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
            if one.split == "test" and one.checkpoint.name == self.best.name
        ]
        return found[0] if found else {}


TRAIN = Stage("train", NoArguments, TypeAdapter(TrainResult), "train {request.run}")
"""Train to the end, from the newest good checkpoint if there is one."""
EVALUATE = Stage(
    "evaluate",
    EvaluateArguments,
    TypeAdapter(list[EvaluationResult]),
    title="evaluate {request.run} on {arguments.split}",
    label="evaluate {arguments.split}",
)
"""Measure checkpoints on a split; the results are in the order of the checkpoints."""
INFER = Stage(
    "infer",
    InferArguments,
    TypeAdapter(PredictionsResult),
    title="infer {arguments.shown_source} with {arguments.checkpoint.name}",
)
"""Score new data with a checkpoint."""
GATE = Stage("gate", GateArguments, TypeAdapter(GateResult), "gate {request.run}")
"""Register a checkpoint as a version of its model, and decide on it beside the champion."""
PROMOTE = Stage("promote", PromoteArguments, TypeAdapter(GateResult), "promote {request.run}")
"""Make the version the champion, if that was decided, or a person allows it."""
PUBLISH = Stage("publish", PublishArguments, TypeAdapter(Report), "publish {request.run}")
"""Write report.json, and the figures, the model and the outcome into MLflow."""

STAGES: tuple[Stage[Any, Any], ...] = (TRAIN, EVALUATE, INFER, GATE, PROMOTE, PUBLISH)
"""In the order in which a run has them first."""
