"""A training function that was written for Ray Train, in place of a workload.

One of the groups of parameters; `config/__init__.py` says in which of them a new one belongs.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from train_core.config.json_text import object_of
from train_core.config.training_options import NAME_OF_OBJECT, WorkloadOptions, check_name
from train_core.policy.options import MAY_CHANGE, Options

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
            # A form that is sent has the parameters' defaults, too.
            usual = WorkloadOptions.model_fields["workload"].default
            if given.get("workload") not in (None, "", function, usual):
                raise ValueError(
                    f"workload {given['workload']!r} and training function {function!r} were "
                    "given: give one, or a predictor, too, which needs both"
                )
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
        if not (self.train_fn or self.trainer):
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
