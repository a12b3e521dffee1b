"""When a checkpoint is taken: what is due after a step, and what one that is in flight changes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from pydantic import Field

from train_core.policy.options import MAY_CHANGE, Options
from train_core.policy.samples.steps import due
from train_core.policy.stop_reasons import is_final


class SaveDue(Enum):
    """Whether a checkpoint is due after a step."""

    NO = "no"
    SCHEDULED = "scheduled"
    UNSCHEDULED = "unscheduled"
    """For a request to stop, or after one that failed: the next commit replaces it."""


class Backpressure(Enum):
    """What a checkpoint in flight means for the one that is due."""

    NONE = "none"
    WAIT = "wait"
    SKIP = "skip"


class SaveRules(Options):
    """When checkpoints are scheduled."""

    checkpoint_every_epochs: int = Field(
        default=1,
        ge=0,
        description="Epochs between two checkpoints; 0: none by epochs.",
        json_schema_extra=MAY_CHANGE,
    )
    checkpoint_every_steps: int = Field(
        default=0,
        ge=0,
        description="Steps between two checkpoints; 0: none by steps.",
        json_schema_extra=MAY_CHANGE,
    )
    checkpoint_every_s: float = Field(
        default=0,
        ge=0,
        description="Seconds between two checkpoints; 0: none by seconds.",
        json_schema_extra=MAY_CHANGE,
    )
    checkpoint_backpressure: Literal["skip", "wait"] = Field(
        default="skip",
        description="If a checkpoint is due while the one before is still being stored: skip the "
        "new one, or wait. One after a validation, and the last one, always wait.",
        json_schema_extra=MAY_CHANGE,
    )

    @property
    def skips_if_busy(self) -> bool:
        """Whether one that is due while another is in flight is left out."""
        return self.checkpoint_backpressure == "skip"


@dataclass(frozen=True)
class AfterStep:
    """Where a training stands after a step, and after its validation if that is due."""

    step: int
    epoch: int
    step_in_epoch: int
    awaits_validation: bool = False
    is_validated: bool = False
    stopped_by: str = ""


def save_due(
    after: AfterStep,
    rules: SaveRules,
    *,
    saved_step: int,
    is_due_by_clock: bool = False,
    is_retry_due: bool = False,
) -> SaveDue:
    """Whether a checkpoint is due.

    `is_due_by_clock` is what rank 0 says by the function of that name; `is_retry_due` says that one
    failed on any rank. Both are what all ranks received.
    """
    if saved_step == after.step:
        return SaveDue.NO
    by_epochs = after.step_in_epoch == 0 and due(rules.checkpoint_every_epochs, after.epoch)
    by_rule = by_epochs or due(rules.checkpoint_every_steps, after.step) or is_due_by_clock
    # The choice of the best counts scheduled ones, and this one lacks its validation.
    if not after.awaits_validation and (by_rule or is_final(after.stopped_by)):
        return SaveDue.SCHEDULED
    return SaveDue.UNSCHEDULED if after.stopped_by or is_retry_due else SaveDue.NO


def is_due_by_clock(rules: SaveRules, *, since_last_s: float, is_busy: bool) -> bool:
    """Whether the time between two checkpoints is over; not if it would be left out anyway."""
    is_over = 0 < rules.checkpoint_every_s <= since_last_s
    return is_over and not (rules.skips_if_busy and is_busy)


def backpressure(after: AfterStep, rules: SaveRules, *, is_busy: bool) -> Backpressure:
    """What to do with a checkpoint that is due, where any rank still stores the last.

    One with a validation is never skipped: the choice of the best must not depend on the storage.
    """
    if not is_busy:
        return Backpressure.NONE
    is_optional = not after.stopped_by and not after.is_validated
    return Backpressure.SKIP if rules.skips_if_busy and is_optional else Backpressure.WAIT
