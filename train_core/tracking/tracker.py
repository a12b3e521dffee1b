"""What evertrain asks of a tracker of experiments: a few verbs, and the values that they take.

A tracker knows nothing of run folders: `follow` reads the folder and says what is to be shown. Each
verb may be called again with the same values, also by another process, and changes nothing then.
`docs/tracking.md` says how a tracker is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from train_core.champion.log import ModelLog
from train_core.policy.end_status import EndStatus
from train_core.results import GateResult, Tracking
from train_core.tracking.refusals import Failure, Refusals

Stage = Literal["pipeline", "train", "evaluate", "infer"]
"""A part of a run. `pipeline` is the run itself; `train` may be shown as one with it."""
Status = Literal["RUNNING", "SCHEDULED"] | EndStatus
"""SCHEDULED: no process has the run, and it goes on later."""
GATE_TAG = "evertrain.gate"
"""The tag of a run with the gate's newest decision."""
DESCRIPTION = "description"
"""The tag of a run with its description, in Markdown."""


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker shows."""

    id: str
    """Tells it from all others, also of the same name at the same place."""
    name: str
    url: str
    """Its folder, as people write it."""
    uri: str
    """The address of its folder."""
    workload: str = ""
    commit: str = ""
    """Of the workload's code."""
    job_url: str = ""
    """The page of the job that drives the run."""
    search: str = ""
    """The search of whose trials it is one; empty: of none."""


@dataclass(frozen=True)
class Known:
    """What a tracker has of a stage."""

    tags: Mapping[str, str]
    status: str


@dataclass(frozen=True)
class Data:
    """Data of a stage, or of a run's split."""

    context: str
    """The stage or the split."""
    name: str
    digest: str
    source_type: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] | None = None
    """Facts about them."""


@dataclass(frozen=True)
class Point:
    """The value of a metric at a step; None: it was not a finite number."""

    name: str
    value: float | None
    step: int
    time_s: float
    """Seconds since 1970: the same whenever the point is sent."""


@dataclass(frozen=True)
class Points:
    """Points that are sent together."""

    points: Sequence[Point]
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that say that the points are there: set with the last of them, if all were taken."""


@dataclass(frozen=True)
class Measured:
    """The model that metrics are of, and the data that they were measured on, if they are known."""

    model: str
    """The digest of its checkpoint."""
    data: Data | None = None


@dataclass(frozen=True)
class TrackedModel:
    """A checkpoint, as a model."""

    name: str
    digest: str
    """Of its manifest: tells it from all others."""
    checkpoint: str
    """Its address."""
    step: int
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Example:
    """A model's input in raw columns, its output, and the names of the code that made it."""

    columns: Any
    predicted: Any
    code: Sequence[str]


@dataclass(frozen=True)
class ModelFiles:
    """The files with which a model loads and serves."""

    write: Callable[[Path], Example]
    """Writes them into a new folder. Raises CheckpointError if they are not what was committed."""
    made_with: Mapping[str, str]
    """What they depend on beside the checkpoint, as tags: with others they are written anew."""


class Tracker(Protocol):
    """Shows one run. A verb raises if the tracker is down, or refuses; `failure_of` tells which."""

    def __init__(
        self, uri: str, experiment: str, run: TrackedRun, refusals: Refusals | None = None
    ) -> None: ...

    @staticmethod
    def contact(uri: str, experiment: str) -> None:
        """Ask the tracker for the experiment; nothing is created.

        Raises TrackingError if it refuses, and an error of its own if it is down.
        """

    @staticmethod
    def failure_of(error: BaseException) -> Failure:
        """What a failure of a verb calls for."""

    @property
    def place(self) -> Tracking:
        """Where the run is shown."""

    def open(self, stage: Stage, *, is_running: bool = False) -> Known:
        """Find or create the stage, and show it as running if it is."""

    def parameters(
        self, stage: Stage, values: Mapping[str, str], data: Sequence[Data] = ()
    ) -> None:
        """Show what the stage was asked to do, and with which data."""

    def metrics(
        self,
        stage: Stage,
        batches: Iterable[Points],
        of: Measured | None = None,
        *,
        is_final: bool = False,
    ) -> None:
        """Show points, also as metrics of a model, which has one of each name.

        `is_final`: they are values that the run ends with, and no curve. One that is there with the
        same value stays; another value is that of an extended run.
        """

    def artifact(self, stage: Stage, path: str, content: bytes) -> None:
        """Keep a file; a newer one of the same path takes its place."""

    def model(self, model: TrackedModel, files: ModelFiles | None = None) -> str:
        """Show a model; its address. With `files` it loads and serves."""

    def retain_models(self, kept: Sequence[str], is_there: Callable[[str], bool]) -> None:
        """Delete the models of deleted checkpoints, but those that somebody registered.

        `kept` are digests; `is_there` says of a checkpoint's address whether that is there, though
        it may be damaged.
        """

    def version(self, result: GateResult, log: ModelLog, logged: Callable[[], str]) -> None:
        """Register the challenger of a decision as a version, and set the aliases as `log`.

        `logged` completes the version's model, for a version that is new here, and gives its
        digest; empty: the tracker takes no such model.
        """

    def tags(self, stage: Stage, tags: Mapping[str, str]) -> None:
        """Set tags; an empty value removes one."""

    def close(self, stage: Stage, status: Status) -> None:
        """End the stage with the status."""
