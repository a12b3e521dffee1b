"""What is trained, from which weights, and how a step is computed.

One of the groups of parameters; `config/__init__.py` says in which of them a new one belongs.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from train_core.config.json_text import object_of
from train_core.policy.findings import Accepted
from train_core.policy.options import MAY_CHANGE, Options
from train_core.policy.samples.steps import BatchOptions

NAME_OF_OBJECT = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


def check_name(name: Any) -> Any:
    """Say more than that a pattern does not match."""
    if isinstance(name, str) and not re.fullmatch(NAME_OF_OBJECT, name):
        raise ValueError(
            "name it as package.module:Name, such as train_core.workloads.digits:Digits"
        )
    return name


WorkloadName = Annotated[
    str, StringConstraints(pattern=NAME_OF_OBJECT), BeforeValidator(check_name)
]
"""What is trained, as package.module:Name."""


class WorkloadOptions(Options):
    """What to train."""

    workload: WorkloadName = Field(
        default="train_core.workloads.digits:Digits",
        description="What to train, as package.module:Name.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="The workload's own settings, a JSON object (see `evertrain workloads`).",
    )

    accept: list[Accepted] = Field(
        default_factory=list,
        description="What the rehearsal of the workload may find without refusing or telling it, "
        "by its names: gradients, loss, …; everything: no rehearsal. Unset: EVERTRAIN_ACCEPT.",
        json_schema_extra=MAY_CHANGE,
    )
    rehearse_on: Literal["cpu", "gpu"] = Field(
        default="cpu",
        description="Where the rehearsal computes; gpu: in a process of its own, on a GPU of the "
        "machine where the driver runs.",
        json_schema_extra=MAY_CHANGE,
    )

    @field_validator("settings", mode="before")
    @classmethod
    def _parse_settings(cls, value: object) -> object:
        return object_of(value)


class InitOptions(Options):
    """The initial weights of a new run."""

    init_from: str = Field(
        default="",
        description="Initial weights of a new run: those of a run (its best checkpoint), "
        "RUN/CHECKPOINT, the path or URL of either or of a .safetensors file, or a registered "
        "model (models:/name/version, models:/name@alias); empty: the workload's own.",
    )
    init_from_optimizer: bool = Field(
        default=False,
        description="Also load the optimizer's state; learning rates stay the new run's.",
    )
    init_from_allow: list[str] = Field(
        default_factory=list,
        description="Tensors of init_from that may be missing, unexpected or of another shape: "
        "names, or patterns such as head.*",
    )

    @model_validator(mode="after")
    def _check_init_from(self) -> Self:
        if not self.init_from and (self.init_from_optimizer or self.init_from_allow):
            raise ValueError(
                "init_from_optimizer and init_from_allow need init_from: name the weights there"
            )
        if self.init_from_optimizer and self.init_from.endswith(".safetensors"):
            raise ValueError(
                f"init_from {self.init_from!r} is a file of weights and has no optimizer: name a "
                "run or a checkpoint, or leave out init_from_optimizer"
            )
        return self


class StepOptions(BatchOptions):
    """How a step is computed. All but `data_workers` decides the numbers."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of all randomness.")
    clip_norm: float = Field(
        default=0, ge=0, description="Clip the gradient's norm to this; 0: no clipping."
    )
    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="ddp: every worker keeps the whole model, and any number of workers ends with "
        "the same bits. fsdp shards weights, gradients and optimizer state over the workers: for "
        "a model whose training state does not fit into one; slower, and another number of "
        "workers gives other last bits.",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="bf16 computes the forward pass under autocast."
    )
    channels_last: bool = Field(
        default=False, description="Keep 4-d tensors in the channels-last memory format."
    )
    compile: bool = Field(default=False, description="Compile the model with torch.compile.")
    eval_batch_size: int = Field(
        default=256, ge=1, description="Samples of a batch in validation, evaluation and inference."
    )
    data_workers: int = Field(
        default=0,
        ge=0,
        description="Processes of each worker that fetch its batches; 0: fetch in the loop.",
        json_schema_extra=MAY_CHANGE,
    )
