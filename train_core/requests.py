"""What is asked of the processes that train: documents that travel as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import SerializerFunctionWrapHandler, field_validator, model_serializer

from train_core.config import TrainConfig
from train_core.errors import CheckedOnlyError, ConfigError, UnchangedError
from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.findings import ACCEPTABLE
from train_core.policy.logins import hide_logins
from train_core.results import Result
from train_core.text.shown_text import few_of

ACCEPT = "EVERTRAIN_ACCEPT"
"""The variable that says what rehearsals may find: names with commas between them."""
DEFAULT_EXPERIMENT = "evertrain"
"""MLflow's experiment."""
MirrorWeights = Literal["best", "kept", "none"]
"""Whose weights are copied into MLflow: the best checkpoint's, all kept ones', or none."""


class KeptColumns(Result):
    """What predictions have of their input."""

    id_column: str = ""
    """The column whose values are the ids. Empty: `id` if there is one, else file and row."""
    columns: tuple[str, ...] = ()
    """Columns that are stored beside the predictions, as they are."""

    @field_validator("columns")
    @classmethod
    def _once_each(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(columns))

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that the input needs for it."""
        return (self.id_column, *self.columns) if self.id_column else self.columns


class PipelineRequest(Result):
    """What a pipeline is asked beyond its training. As JSON, it has only what was asked."""

    infer_input: str | None = None
    """What is scored: a split's name or a URL; None: nothing is."""
    infer_keeps: KeptColumns | None = None
    """What the predictions have of it beside the usual ids; None: nothing."""
    gate: GateOptions | None = None
    """What makes a checkpoint champion; None: nothing is compared."""

    @model_serializer(mode="wrap")
    def _only_what_was_asked(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value is not None}


class RecordedPipeline(PipelineRequest):
    """What a run's record says of its pipeline; what it does not say is the default."""

    tracking_uri: str | None = None
    """Where MLflow is, if a parameter said so; None: the environment did."""
    experiment: str = DEFAULT_EXPERIMENT
    dry_run: bool = False
    mirror_weights: MirrorWeights = "best"

    @classmethod
    def read(cls, recorded: Mapping[str, Any]) -> Self:
        """The part of the record that evertrain reads; records of earlier versions have more."""
        return cls(**{name: recorded[name] for name in cls.model_fields if name in recorded})


class LentPlaces(Result):
    """A Ray that runs already, and what somebody has reserved there for the workers of one run."""

    address: str
    """Of its head."""
    placement_group: str
    """The group's id, as hexadecimal digits: each of its bundles is a worker's place."""
    places: list[dict[str, float]] = []
    """What each of them has."""
    runtime_env: dict[str, Any] = {}
    """Of the job that has reserved it."""


class SearchTrial(Result):
    """Which trial of which search a run is of."""

    search: str
    """The name of the search: all of its runs have it."""
    trial: str
    """The trial's id."""
    generation: int = 1
    """A trial that goes on with another one's weights, or other parameters, begins another run."""
    asked: str = ""
    """The digest of the trial's parameters."""
    begins_with: str = ""
    """The digest of the checkpoint whose weights it begins with, of this trial or another one."""
    epochs_before: int = 0
    """The epochs behind the weights that the run begins with."""
    steps_before: int = 0
    """The optimizer steps behind them."""


class Request(Result):
    """What a driver is started with."""

    storage: str
    run: str
    config: TrainConfig
    job_url: str = ""
    """The page of the job that is the driver, where one is."""
    began_at: float = 0
    """When the process that asks began, in seconds since 1970; 0: when its driver did."""
    lent: LentPlaces | None = None
    """Where its workers run; None: on a Ray of its own, or on the cluster at `ray_address`."""


def with_accepted(config: TrainConfig) -> TrainConfig:
    """Where it accepts nothing, what the environment accepts. Raises ConfigError."""
    named = [name.strip() for name in os.environ.get(ACCEPT, "").split(",") if name.strip()]
    if config.accept or not named or not config.has_effect("accept"):
        return config
    if unknown := [name for name in named if name not in ACCEPTABLE]:
        raise ConfigError(
            f"{ACCEPT} names {few_of(unknown)}, which no rehearsal finds: {', '.join(ACCEPTABLE)}"
        )
    return config.model_copy(update={"accept": named})


class DriverRequest(Request):
    """A training, and the pipeline around it."""

    flow_run: str = ""
    """The flow run after which the run is named: one that began otherwise is refused."""
    pipeline: PipelineRequest = PipelineRequest()
    tracking_uri: str = ""
    """Where MLflow is; empty: no mirror."""
    records_tracking_uri: bool = False
    """Whether run.json names that address: the environment's may hold a login."""
    experiment: str = DEFAULT_EXPERIMENT
    mirror_weights: MirrorWeights = "best"
    dry_run: bool = False
    is_paced: bool = False
    """Whether the training waits until who follows it has taken its reports, but for the last."""
    search: SearchTrial | None = None
    """The trial of a search that it is; None: of none."""
    skip_unchanged: bool = False
    """Begin no run if nothing that counts has changed since the workload's last finished run."""

    @field_validator("config")
    @classmethod
    def _accept(cls, config: TrainConfig) -> TrainConfig:
        # Here, as a driver on a cluster has another environment.
        return with_accepted(config)

    def recorded(self) -> RecordedPipeline:
        """What a run's record says of the pipeline."""
        return RecordedPipeline(
            infer_input=hide_logins(self.pipeline.infer_input),
            infer_keeps=self.pipeline.infer_keeps,
            gate=self.pipeline.gate,
            tracking_uri=self.tracking_uri if self.records_tracking_uri else None,
            experiment=self.experiment,
            dry_run=self.dry_run,
            mirror_weights=self.mirror_weights,
        )


class ScoringRequest(Request):
    """A batch inference with a run that exists: nobody has to have the run for it."""

    infer_input: str
    """What is scored: a split's name or a URL."""
    infer_keeps: KeptColumns = KeptColumns()
    model: str = ""
    """The registered model's version whose checkpoint it is, if it was asked for by that."""


def request_of(document: object) -> Request:
    """The request that was sent as JSON. Raises ValidationError if it is none."""
    is_scoring = isinstance(document, Mapping) and "infer_input" in document
    return (ScoringRequest if is_scoring else DriverRequest).model_validate(document)


class Prepared(Result):
    """What the checks before any compute found out."""

    run: str
    url: str
    resumed: bool
    """Whether the run existed before."""
    num_samples: dict[str, int]
    total_steps: int
    unchanged_since: str = ""
    """The finished run since which nothing that counts has changed: this one was not created."""
    waiting_version: int | None = None
    """The version of that run that waits for a person's answer, if one does."""
    plan: str = ""
    """What a run would do, where a dry run of a training function created none."""
    job_url: str = ""
    """The page of the job that does it, if it is done on a cluster."""

    @property
    def is_begun(self) -> bool:
        """Whether a run was begun, so that stages follow."""
        return not (self.unchanged_since or self.plan)

    def check_begun(self) -> None:
        """Raise NothingBegunError, which says why, if no run was created."""
        if self.unchanged_since:
            raise UnchangedError(self.unchanged_since, self.waiting_version)
        if self.plan:
            raise CheckedOnlyError(self.plan)


class StandaloneTask(Result):
    """What one start of `train_core.tools.standalone` is asked to do."""

    storage: str
    run: str
    config: TrainConfig
    max_samples: int
    """Samples of a split at most."""
    fitted_of: str = ""
    """The run in the same storage that has what the workload fitted; empty: it fits now."""
    kill_after: int | None = None
    """Rank 0 kills itself in the step after this one, once what it saved is committed."""


def died_mark(task_file: Path) -> Path:
    """The file that a rank leaves before it kills itself."""
    return task_file.with_suffix(".died")


def digests_file(task_file: Path, rank: int = 0) -> Path:
    """The file in which a rank has the digests of each of its steps."""
    return task_file.with_suffix(f".steps-{rank}")


def digests_files(task_file: Path) -> list[Path]:
    """Those of all ranks."""
    return sorted(task_file.parent.glob(f"{task_file.stem}.steps-*"))


def error_file(task_file: Path) -> Path:
    """The file in which the first rank that failed says why."""
    return task_file.with_suffix(".error")
