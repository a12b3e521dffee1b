"""A training function that was written for Ray Train, in place of a workload.

One of the groups of parameters; `config/__init__.py` says in which of them a new one belongs.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from train_core.config.checkpoint_options import CheckpointOptions
from train_core.config.json_text import object_of
from train_core.config.training_options import (
    NAME_OF_OBJECT,
    InitOptions,
    StepOptions,
    WorkloadOptions,
    check_name,
)
from train_core.config.worker_options import WorkerOptions
from train_core.policy.options import MAY_CHANGE, Options
from train_core.policy.stop_reasons import LengthOptions, MonitorOptions

_USED = {"workload", "init_from", "grace_s", "monitor", "monitor_order"} | (
    set(WorkerOptions.model_fields)
    - {"min_workers", "num_shards", "deterministic", "threads_per_worker"}
)
"""Parameters of the groups below that a training function is run by."""
_USED_TO_SCORE = {"settings", "eval_batch_size", "hang_timeout_s", "threads_per_worker"}
"""Those that its predictor is run by, too."""
_GROUPS = (
    InitOptions,
    WorkloadOptions,
    LengthOptions,
    StepOptions,
    MonitorOptions,
    CheckpointOptions,
    WorkerOptions,
)


FunctionName = Annotated[
    str,
    StringConstraints(pattern=rf"^$|{NAME_OF_OBJECT}"),
    BeforeValidator(lambda name: name and check_name(name)),
]
"""A function as package.module:function, or nothing."""


class FunctionOptions(Options):
    """The training function, and what it is called with."""

    train_fn: FunctionName = Field(
        default="",
        description="A training function written for Ray Train, as package.module:function; it "
        "takes the place of the workload.",
    )
    trainer: FunctionName = Field(
        default="",
        description="A function without arguments that returns a TorchTrainer or "
        "DataParallelTrainer, as package.module:function; it takes the place of the workload.",
    )
    train_loop_config: dict[str, Any] = Field(
        default_factory=dict,
        description="The argument of train_fn, a JSON object.",
        json_schema_extra=MAY_CHANGE,
    )
    max_failures: int = Field(
        default=0,
        ge=-1,
        description="How many errors that a training function raises are followed by another "
        "attempt; -1: all; 0 for a trainer: as its FailureConfig says. An attempt that a dead "
        "process ended is followed by another one in any case.",
        json_schema_extra=MAY_CHANGE,
    )

    predictor: FunctionName = Field(
        default="",
        description="A function that makes a callable of a reported folder, as "
        "package.module:function: with it, checkpoints are evaluated on the workload's splits, and "
        "the best one scores infer_input. Empty: the reported metrics decide.",
        json_schema_extra=MAY_CHANGE,
    )
    trust_pickle: bool = Field(
        default=False,
        description="Let the predictor read files that hold pickles, which can run any code.",
        json_schema_extra=MAY_CHANGE,
    )

    @field_validator("train_loop_config", mode="before")
    @classmethod
    def _parse_train_loop_config(cls, value: object) -> object:
        return object_of(value)

    @model_validator(mode="before")
    @classmethod
    def _name_the_workload(cls, given: Any) -> Any:
        """A function is listed under its own name."""
        if not isinstance(given, dict):
            return given
        function = given.get("train_fn") or given.get("trainer")
        if not function:
            return given
        if not given.get("predictor"):
            return given | {"workload": function}
        if not given.get("workload"):
            raise ValueError(
                f"predictor {given['predictor']!r} needs workload, which has the data, the metrics "
                "and the form of predictions"
            )
        return given

    @model_validator(mode="after")
    def _check_function(self) -> Self:
        if self.train_fn and self.trainer:
            raise ValueError(
                f"train_fn {self.train_fn!r} and trainer {self.trainer!r} were given: give one, "
                "as a trainer has its own training function"
            )
        if self.train_loop_config and not self.train_fn:
            raise ValueError(
                "train_loop_config needs train_fn, whose argument it is: a trainer has its own"
            )
        if self.trust_pickle and not self.predictor:
            raise ValueError("trust_pickle needs predictor: nothing else reads a pickle")
        if not self.is_function:
            if self.predictor:
                raise ValueError(
                    f"predictor {self.predictor!r} needs train_fn or trainer: a workload has a "
                    "model of its own"
                )
            if self.max_failures:
                raise ValueError(
                    f"max_failures is {self.max_failures} and needs train_fn or trainer: a "
                    "workload that raises an error would raise it again"
                )
        return self

    @property
    def is_function(self) -> bool:
        """Whether a training function is run, and no workload."""
        return bool(self.train_fn or self.trainer)

    @property
    def has_workload(self) -> bool:
        """Whether `workload` names one: the data of an evaluation and a batch inference."""
        return not self.is_function or bool(self.predictor)

    @property
    def without_effect(self) -> set[str]:
        """The names of the parameters that change nothing for what is trained."""
        if not self.is_function:
            return set(FunctionOptions.model_fields)
        used = _USED | (_USED_TO_SCORE if self.predictor else set())
        return {name for group in _GROUPS for name in group.model_fields if name not in used}
