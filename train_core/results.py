"""What the stages give: addresses and numbers, ready for JSON. No tensor passes through here."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from train_core.policy.selection import Order


class Result(BaseModel):
    """Base of the stages' results."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CheckpointSummary(Result):
    """A committed checkpoint."""

    name: str
    uri: str
    step: int
    epoch: int
    metrics: dict[str, float | None]


class TrainResult(Result):
    """The outcome of a training."""

    run: str
    attempt: int
    step: int
    epoch: int
    samples_seen: int
    stopped_by: str
    """`epochs`, `max_steps`, `max_duration`, `early_stopping`, `function_end`."""
    metrics: dict[str, float | None]
    samples_per_s: float
    seconds: float
    checkpoints: list[CheckpointSummary]
    """Those that retention kept, oldest first."""
    finalists: list[CheckpointSummary] = []
    """Those of them among which the best is to be chosen, oldest first: the end, and the best of
    those that an epoch ended with, if epochs end with checkpoints."""
    monitor: str = ""
    """The metric that ranks them; a factory's trainer may name it."""
    monitor_order: Order = "max"


class EvaluationResult(Result):
    """One checkpoint measured on one split."""

    checkpoint: CheckpointSummary
    split: str
    uri: str
    num_samples: int
    metrics: dict[str, float | None]


class Selection(Result):
    """The best checkpoint, and all in their order."""

    best: CheckpointSummary
    metric: str
    order: str
    ranking: list[CheckpointSummary]


class PredictionsResult(Result):
    """Where the predictions of a batch inference are."""

    checkpoint: CheckpointSummary
    uri: str
    num_rows: int
    files: list[str]
    source: str = ""
    """The input: a split's name, or the address of its folder."""
    input_digest: str = ""
    """BLAKE3 of the input's files, or the split's digest; empty where it has none."""


class ExportResult(Result):
    """A checkpoint's weights in a file of their own."""

    checkpoint: str
    """The checkpoint's address."""
    uri: str
    size_bytes: int
    digest: str
    """BLAKE3 of the file."""
    num_tensors: int


class Tracking(Result):
    """Where MLflow shows a run; empty strings while it cannot be reached."""

    tracking_uri: str = ""
    experiment_id: str = ""
    run_id: str = ""
    url: str = ""
    model_uri: str = ""


class Report(Result):
    """report.json: the outcome of a pipeline run."""

    format: int = 1
    run: str
    uri: str
    workload: str
    train: TrainResult
    evaluations: list[EvaluationResult]
    best: CheckpointSummary
    test_metrics: dict[str, float | None]
    predictions: PredictionsResult | None
    """None: nothing was scored."""
    tracking: Tracking
    seconds: dict[str, float]
    """Wall-clock seconds of each stage."""
    timeline: dict[str, float] = {}
    """Seconds from the start of the process that asked for the run to each event."""
