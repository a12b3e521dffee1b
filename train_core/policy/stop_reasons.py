"""Why a training ends: decided after each step, recorded, and judged again by newer limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import Field

from train_core.policy.options import MAY_CHANGE, Options


class StopReason(StrEnum):
    """Why a training ended; a checkpoint's manifest has the value."""

    EPOCHS = "epochs"
    MAX_STEPS = "max_steps"
    EARLY_STOPPING = "early_stopping"
    MAX_DURATION = "max_duration"
    FUNCTION_END = "function_end"
    """A training function returned."""
    REQUEST = "request"
    """A request ended it early: the training may go on."""
    FAILURE = "failure"
    """A training function failed: the training may go on."""


class LengthOptions(Options):
    """How long to train."""

    epochs: int = Field(
        default=1, ge=1, description="Passes over the training split.", json_schema_extra=MAY_CHANGE
    )
    max_steps: int = Field(
        default=0,
        ge=0,
        description="Maximum of optimizer steps; 0: no limit.",
        json_schema_extra=MAY_CHANGE,
    )
    max_duration_s: float = Field(
        default=0,
        ge=0,
        description="Maximum of seconds of training; 0: no limit.",
        json_schema_extra=MAY_CHANGE,
    )


class MonitorOptions(Options):
    """The metric that ranks checkpoints and stops early."""

    monitor: str = Field(
        default="",
        description="The metric that ranks checkpoints and stops early; empty: the workload's own, "
        "or else validation/accuracy. Of a training function: none, the newest is the best.",
    )
    monitor_order: Literal["", "max", "min"] = Field(
        default="",
        description="Whether a higher or a lower monitored metric is better; empty: as the "
        "workload says of its own, and else max.",
    )
    early_stopping_patience: int = Field(
        default=0,
        ge=0,
        description="Validations without improvement after which to stop; 0: never.",
    )
    early_stopping_min_delta: float = Field(
        default=0,
        ge=0,
        description="The least change of the monitored metric that counts as an improvement.",
    )

    @property
    def order(self) -> Literal["max", "min"]:
        """Whether more of the monitored metric is better."""
        return self.monitor_order or "max"


class StopLimits(MonitorOptions, LengthOptions):
    """What a training may take, also without an improvement of the monitored metric."""


@dataclass(frozen=True)
class Reached:
    """What a training has taken so far."""

    step: int
    epoch: int
    elapsed_s: float = 0
    num_bad_validations: int = 0
    """Validations, one after the other, that brought no improvement."""


_BY_LIMIT = (
    StopReason.EPOCHS,
    StopReason.MAX_STEPS,
    StopReason.EARLY_STOPPING,
)
"""The limits that every rank compares for itself; the first one that is reached is recorded."""


def has_reached(reason: StopReason, reached: Reached, limits: StopLimits) -> bool:
    """Whether the limit of this reason is reached. A request is no limit."""
    match reason:
        case StopReason.EPOCHS:
            return reached.epoch >= limits.epochs
        case StopReason.MAX_STEPS:
            return 0 < limits.max_steps <= reached.step
        case StopReason.EARLY_STOPPING:
            return 0 < limits.early_stopping_patience <= reached.num_bad_validations
        case StopReason.MAX_DURATION:
            return 0 < limits.max_duration_s <= reached.elapsed_s
        case StopReason.FUNCTION_END:
            return True
        case StopReason.REQUEST | StopReason.FAILURE:
            return False


def reason_to_stop(
    reached: Reached,
    limits: StopLimits,
    *,
    awaits_validation: bool = False,
    is_duration_over: bool = False,
    is_asked_to_stop: bool = False,
) -> StopReason | None:
    """Why the training ends after this step; None: it goes on.

    `is_duration_over` is what rank 0's clock says, as all ranks received it. A training that still
    awaits an epoch's validation reaches its limits after that only.
    """
    if not awaits_validation:
        for reason in _BY_LIMIT:
            if has_reached(reason, reached, limits):
                return reason
    if is_asked_to_stop:
        return StopReason.REQUEST
    return StopReason.MAX_DURATION if is_duration_over else None


def is_final(stopped_by: str) -> bool:
    """Whether a recorded reason is a limit of the training's own; empty: it did not end there."""
    return stopped_by not in ("", StopReason.REQUEST, StopReason.FAILURE)


def still_holds(stopped_by: str, reached: Reached, limits: StopLimits) -> bool:
    """Whether a training that ended for the recorded reason is over by these limits as well."""
    if not is_final(stopped_by) or stopped_by not in set(StopReason):
        return False
    # No manifest has the count of validations, and the patience of a run may not change.
    return stopped_by == StopReason.EARLY_STOPPING or has_reached(
        StopReason(stopped_by), reached, limits
    )
