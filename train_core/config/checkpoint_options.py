"""When checkpoints are written, which of them are kept, and the limits of waiting.

One of the groups of parameters; `config/__init__.py` says in which of them a new one belongs.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from train_core.config.option_groups import MAY_CHANGE, Options


class CheckpointOptions(Options):
    """When checkpoints are written, and how long a training goes on without."""

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


class RetentionOptions(Options):
    """Which checkpoints are kept; a checkpoint that one rule keeps stays."""

    keep_last: int = Field(
        default=2,
        ge=1,
        description="How many of the newest checkpoints to keep.",
        json_schema_extra=MAY_CHANGE,
    )
    keep_best: int = Field(
        default=3,
        ge=1,
        description="How many of the best checkpoints to keep.",
        json_schema_extra=MAY_CHANGE,
    )
    keep_every_steps: int = Field(
        default=0,
        ge=0,
        description="Keep checkpoints whose step is a multiple of this; 0: no such rule.",
        json_schema_extra=MAY_CHANGE,
    )
    keep_newer_than_s: float = Field(
        default=0,
        ge=0,
        description="Keep checkpoints younger than this, in seconds; 0: no such rule.",
        json_schema_extra=MAY_CHANGE,
    )
