"""Stages that a test asks a driver for, in few words."""

from __future__ import annotations

from concurrent.futures import Future

from train_core.client.driver_handle import Driver
from train_core.datasets.protocols import Split
from train_core.results import CheckpointSummary, EvaluationResult, PredictionsResult, TrainResult
from train_core.stages import EVALUATE, INFER, TRAIN, ArgumentsT, ResultT, Stage


def train(driver: Driver) -> TrainResult:
    return driver.ask(TRAIN, TRAIN.arguments())


def evaluate(
    driver: Driver, checkpoints: list[CheckpointSummary], split: Split
) -> list[EvaluationResult]:
    return driver.ask(EVALUATE, EVALUATE.arguments(checkpoints=checkpoints, split=split))


def infer(driver: Driver, checkpoint: CheckpointSummary, source: str) -> PredictionsResult:
    return driver.ask(INFER, INFER.arguments(checkpoint=checkpoint, source=source))


def asking(
    driver: Driver, stage: Stage[ArgumentsT, ResultT], arguments: ArgumentsT
) -> Future[ResultT]:
    """The result of a stage that is waited for later."""
    return driver.carrier.call(stage, arguments)
