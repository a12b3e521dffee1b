"""When checkpoints are written, and which of them are kept."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from train_core.config.options import MAY_CHANGE, Options


class CheckpointOptions(Options):
    """When checkpoints are written, and how long a training goes on without."""

    checkpoint_every_epochs: int = Field(
        default=1,
        ge=0,
        description="Checkpoint after every so many epochs; 0: not by epochs.",
        json_schema_extra=MAY_CHANGE,
    )
    checkpoint_every_steps: int = Field(
        default=0,
        ge=0,
        description="Checkpoint after every so many steps; 0: not by steps.",
        json_schema_extra=MAY_CHANGE,
    )
    checkpoint_every_s: float = Field(
        default=0,
        ge=0,
        description="Checkpoint every so many seconds; 0: not by seconds.",
        json_schema_extra=MAY_CHANGE,
    )
    checkpoint_backpressure: Literal["skip", "wait"] = Field(
        default="skip",
        description="When a checkpoint is due while the last one is still being stored: leave it "
        "out, or wait. One with a validation, and the last one, always wait.",
        json_schema_extra=MAY_CHANGE,
    )
    hang_timeout_s: float = Field(
        default=600,
        ge=0,
        description="A worker that for so many seconds ends no step, and no batch of a validation, "
        "an evaluation or an inference, logs where it stands and is started again; 0: it is "
        "waited for.",
        json_schema_extra=MAY_CHANGE,
    )
    grace_s: float = Field(
        default=20,
        ge=0,
        description="Seconds that a training which is asked to stop has for its last checkpoint.",
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
        description="Checkpoints to keep, counted from the newest.",
        json_schema_extra=MAY_CHANGE,
    )
    keep_best: int = Field(
        default=3,
        ge=1,
        description="Checkpoints to keep, counted from the best.",
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
        description="Keep checkpoints younger than so many seconds; 0: no such rule.",
        json_schema_extra=MAY_CHANGE,
    )
