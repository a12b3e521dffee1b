"""When checkpoints are written, and the limits of waiting.

One of the groups of parameters; `config/__init__.py` says in which of them a new one belongs.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from train_core.policy.checkpoints.save_schedule import SaveRules
from train_core.policy.options import MAY_CHANGE


class CheckpointOptions(SaveRules):
    """When checkpoints are written, and how long a training goes on without."""

    hang_timeout_s: float = Field(
        default=600,
        ge=0,
        description="Seconds in which a worker has to end a step, or a batch of a validation, an "
        "evaluation or an inference; else it logs its stacks and is restarted; 0: no limit.",
        json_schema_extra=MAY_CHANGE,
    )
    grace_s: float = Field(
        default=20,
        ge=0,
        description="Seconds in which a training that is asked to stop has to save and end.",
        json_schema_extra=MAY_CHANGE,
    )
    max_unsaved_s: float = Field(
        default=3600,
        ge=0,
        description="End the training when no checkpoint could be stored for so many seconds; 0: "
        "never.",
        json_schema_extra=MAY_CHANGE,
    )

    @model_validator(mode="after")
    def _check_checkpoints(self) -> Self:
        if not (
            self.checkpoint_every_epochs or self.checkpoint_every_steps or self.checkpoint_every_s
        ):
            raise ValueError(
                "no checkpoint would be written before the end: set checkpoint_every_epochs, "
                "checkpoint_every_steps or checkpoint_every_s"
            )
        return self
