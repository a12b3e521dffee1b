"""What the stages give: addresses and numbers, ready for JSON. No tensor passes through here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from train_core.policy.champion.gate_decision import Evidence, Outcome
from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.checkpoints.selection import Order
from train_core.policy.findings import Accepted, FindingName

_BECAME, _WAITS = "became champion", "waits for approval"
_AS_A_CLAUSE = {
    "not promoted": "which the gate refused",
    "rejected": "which a person rejected",
    "approved": "which a person approved",
}
_MOST_REASONS = 3


class Result(BaseModel):
    """Base of the stages' results."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Finding(Result):
    """What a rehearsal says of a workload."""

    name: FindingName
    """What was tried."""
    is_refused: bool
    """Whether the result would be wrong without a word; otherwise it is told."""
    message: str
    """What, of which parameter, metric or state, and how it is mended."""


class Rehearsal(Result):
    """What was tried of a workload before its first step, and what it showed."""

    tried: list[FindingName]
    findings: list[Finding]
    left_out: list[str] = []
    """What was not tried, and why."""
    is_cut_short: bool = False
    """Whether something was not tried that another rehearsal might try."""
    accepted: list[Accepted] = []
    """What the configuration, or the environment, accepts."""
    cpu_s: float


class CheckpointSummary(Result):
    """A committed checkpoint."""

    name: str
    uri: str
    step: int
    epoch: int
    metrics: dict[str, float | None]


class Reported(Result):
    """A report that is committed: a workload's validation, or what a training function reported."""

    step: int
    """Optimizer steps done; of a training function the number of its report."""
    metrics: dict[str, float | None]
    """What was measured at this step; None where it was not finite."""
    checkpoint: CheckpointSummary | None = None
    """The checkpoint of this step; None: it has none, or retention has deleted it."""


class Reports(Result):
    """Reports of a training, in their order."""

    reports: list[Reported]
    """Empty: there was no new one in time."""


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
    """Those that retention kept, oldest first; of a training function that reported none, none."""
    finalists: list[CheckpointSummary] = []
    """Those of them among which the best is to be chosen, oldest first: the end, and the best of
    those that an epoch ended with, if epochs end with checkpoints."""
    monitor: str = ""
    """The metric that ranks them; a factory's trainer may name it."""
    monitor_order: Order = "max"
    processors: tuple[str, ...] = ()
    """What it was computed on, oldest first: an entry for each change."""
    return_value: Any = None
    """What a training function returned on rank 0, if it is JSON."""


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
    without_prediction: int = 0
    """Rows for which the model gives NaN: their predictions are null, or lists with NaN."""


class ModelVersion(Result):
    """A version of a registered model: which checkpoint of which run it is."""

    format: Literal[1] = 1
    model: str
    version: int = Field(ge=1)
    run: str
    """A run of the same storage."""
    checkpoint: str
    checkpoint_digest: str
    created_at: str

    @property
    def address(self) -> str:
        """As people write it."""
        return f"models:/{self.model}/{self.version}"


class McNemar(Result):
    """McNemar's exact test: the rows on which just one of two classifiers is right."""

    only_challenger_right: int
    only_champion_right: int
    p_value: float
    """Of a difference that is as large by chance, in either direction."""


class Comparison(Result):
    """How the two models were compared on the same rows."""

    split: str
    num_rows: int
    data_digest: str
    """Of the split; empty where it has none."""
    confidence: float
    """The level of the improvement's interval."""
    num_resamples: int
    """Of the bootstrap; 0: there was no champion to compare with."""
    seed: int
    mcnemar: McNemar | None = None


def _in_one_line(reasons: Sequence[str]) -> str:
    more = len(reasons) - _MOST_REASONS
    return "; ".join(reasons[:_MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")


class Decision(Result):
    """What the gate decided on one version, in comparison with one champion, and why."""

    format: Literal[1] = 1
    created_at: str
    challenger: ModelVersion
    champion: ModelVersion | None
    """None: there was none."""
    champion_number: int
    """The number of its entry among the champions; 0: there was none."""
    metric: str
    order: Order
    comparison: Comparison
    evidence: Evidence
    rules: GateOptions
    outcome: Outcome
    reasons: tuple[str, ...] = Field(min_length=1)
    """The first one decided."""

    @field_validator("rules", mode="before")
    @classmethod
    def _of_earlier(cls, rules: Any) -> Any:
        """Earlier versions recorded some of the options, `gate_minimum` as `minimum`."""
        if isinstance(rules, Mapping) and "minimum" in rules:
            others = {name: value for name, value in rules.items() if name != "minimum"}
            return {**others, "gate_minimum": rules["minimum"]}
        return rules

    @property
    def why(self) -> str:
        """The reasons in one line: of many, as of a model with many classes, the first ones."""
        return _in_one_line(self.reasons)

    @property
    def why_answered(self) -> str:
        """The reasons in one line for who has an answer: without the one that asked for it."""
        asked = self.outcome == Outcome.ASK and len(self.reasons) > 1
        return _in_one_line(self.reasons[1:] if asked else self.reasons)


class Approval(Result):
    """A person's answer to one decision that asks for it."""

    format: Literal[1] = 1
    version: ModelVersion
    champion_number: int
    """The decision's: who was shown a comparison with one champion has said nothing of another."""
    is_approved: bool
    person: str
    reason: str
    created_at: str

    def is_same(self, other: Approval) -> bool:
        """Whether the other one says the same of the version: only one of the two is needed."""
        return (self.version, self.is_approved) == (other.version, other.is_approved)

    @property
    def who_said_what(self) -> str:
        """As `ann (reject)`."""
        return f"{self.person} ({'approve' if self.is_approved else 'reject'})"


class ChampionEntry(Result):
    """From here on this version is the champion, until the entry with the next number."""

    format: Literal[1] = 1
    number: int = Field(ge=1)
    version: ModelVersion
    created_at: str
    by: Literal["gate", "approval", "rollback"]
    decided_by: str
    """The key of the decision in the storage; of a rollback, who asked for it."""
    reason: str
    data_digest: str = ""
    """Of the split on which it was chosen."""
    num_rows: int = 0

    @property
    def why(self) -> str:
        """The reason; of a rollback also who asked for it."""
        is_rollback = self.by == "rollback"
        return f"{self.decided_by} went back to it ({self.reason})" if is_rollback else self.reason


class GateResult(Result):
    """The outcome of a gate."""

    decision: Decision
    decision_uri: str
    approval: Approval | None = None
    entry: ChampionEntry | None = None
    """What made the challenger champion; None: it is not."""

    @property
    def status(self) -> str:
        """What became of the challenger, in a few words."""
        if self.entry:
            return _BECAME
        if self.approval:
            return "approved" if self.approval.is_approved else "rejected"
        asks = self.decision.outcome == Outcome.ASK
        return _WAITS if asks else "not promoted"

    @property
    def outcome_line(self) -> str:
        """What became of the challenger, and why. It stays true when another one is champion."""
        if self.entry:
            before = self.decision.champion
            place = f" in place of {before.address}" if before else ""
            return f"{self.status}{place}: {self.entry.why}"
        if self.approval:
            by = f'{self.approval.person} ("{self.approval.reason}")'
            return f"{self.status} by {by}: {self.decision.why_answered}"
        return f"{self.status}: {self.decision.why}"

    @property
    def summary(self) -> str:
        """The line with the version's address before it."""
        is_verb = self.status in (_BECAME, _WAITS)
        return f"{self.decision.challenger.address} {'' if is_verb else 'is '}{self.outcome_line}"


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
    best: CheckpointSummary | None
    """None: a training function reported no checkpoint."""
    test_metrics: dict[str, float | None]
    predictions: PredictionsResult | None
    """None: nothing was scored."""
    tracking: Tracking
    gate: GateResult | None = None
    """None: no gate was wished, or there was nothing to compare."""
    flow_run: str = ""
    """The flow run that ended the pipeline, in Markdown; empty: there was none."""
    seconds: dict[str, float]
    """Wall-clock seconds of each stage."""
    timeline: dict[str, float] = {}
    """Seconds from the start of the process that asked for the run to each event."""

    @property
    def scored_with(self) -> str:
        """Which model made the predictions, and what became of it; empty: nothing was scored."""
        if self.predictions is None:
            return ""
        checkpoint = self.predictions.checkpoint.name
        if self.gate is None:
            return f"scored with {checkpoint}"
        version = self.gate.decision.challenger.address
        status = _AS_A_CLAUSE.get(self.gate.status, f"which {self.gate.status}")
        return f"scored with {version} ({checkpoint}), {status}"
