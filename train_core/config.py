"""What a training is asked to do: one frozen, typed value, checked where it is made.

`TrainConfig` is the whole of it: it is what `fit` takes, what `run.json` records and what the
flow's parameters extend. A field whose schema says `may_change` can be given another value
when an unfinished run is continued; every other field decides the numbers and may not.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from train_core.policy.logins import hide_logins
from train_core.policy.retention import RetentionRules
from train_core.policy.save_schedule import SaveRules
from train_core.policy.steps import StepPlan
from train_core.policy.stop_reasons import StopLimits

MAY_CHANGE: dict[str, JsonValue] = {"may_change": True}
_LENGTH = ("epochs", "max_steps", "max_duration_s")
LOCAL = "local"
"""The `ray_address` of a Ray that is started for the run."""


_WORKLOAD = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


def _check_workload(name: object) -> object:
    """Say more than that a pattern does not match."""
    if isinstance(name, str) and not re.fullmatch(_WORKLOAD, name):
        raise ValueError(
            "name it as package.module:Name, such as train_core.workloads.digits:Digits"
        )
    return name


WorkloadName = Annotated[
    str, StringConstraints(pattern=_WORKLOAD), BeforeValidator(_check_workload)
]
"""What is trained, as package.module:Name."""


class TrainConfig(BaseModel):
    """How to train one workload. Unknown names are an error; negative numbers too."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    workload: WorkloadName = Field(
        default="train_core.workloads.digits:Digits",
        description="What to train, as package.module:Name.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="The workload's own settings, a JSON object (see `evertrain workloads`).",
    )
    epochs: int = Field(
        default=1, ge=1, description="Passes over the training split.", json_schema_extra=MAY_CHANGE
    )
    max_steps: int = Field(
        default=0,
        ge=0,
        description="Stop after so many optimizer steps; 0: no limit.",
        json_schema_extra=MAY_CHANGE,
    )
    max_duration_s: float = Field(
        default=0,
        ge=0,
        description="Stop after so many seconds of training; 0: no limit.",
        json_schema_extra=MAY_CHANGE,
    )
    init_from: str = Field(
        default="",
        description="Whose weights a new run begins with: a run (its best checkpoint), "
        "RUN/CHECKPOINT, the path or URL of either or of a .safetensors file, or a registered "
        "model (models:/name/version, models:/name@alias); empty: the workload's own.",
    )
    init_from_optimizer: bool = Field(
        default=False,
        description="Begin with its optimizer's moments, too; the rates are the new run's.",
    )
    init_from_allow: list[str] = Field(
        default_factory=list,
        description="Tensors that may be missing there, be unexpected or have another shape: "
        "names, or patterns as head.*",
    )
    batch_size: int = Field(
        default=128, ge=1, description="Samples of one optimizer step, over all workers."
    )
    accumulation_steps: int = Field(
        default=1, ge=1, description="Micro-steps into which a batch is cut, to save memory."
    )
    drop_last: bool = Field(
        default=False, description="Leave out the last, smaller batch of an epoch."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="All randomness is derived from it.")
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
        default=256, ge=1, description="Samples of a batch in validation, evaluation, inference."
    )
    data_workers: int = Field(
        default=0,
        ge=0,
        description="Processes a worker starts to fetch its batches; 0: fetch in the loop.",
        json_schema_extra=MAY_CHANGE,
    )
    monitor: str = Field(
        default="validation/accuracy",
        description="The metric that ranks checkpoints and stops early.",
    )
    monitor_order: Literal["max", "min"] = Field(
        default="max", description="Whether more or less of the monitored metric is better."
    )
    early_stopping_patience: int = Field(
        default=0, ge=0, description="Stop after so many validations without improvement; 0: never."
    )
    early_stopping_min_delta: float = Field(
        default=0, ge=0, description="What counts as an improvement of the monitored metric."
    )
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
    num_workers: int = Field(
        default=1,
        ge=1,
        description="Worker processes (ranks). With min_workers, or as MIN,MAX on the command "
        "line, the most of them.",
        json_schema_extra=MAY_CHANGE,
    )
    min_workers: int = Field(
        default=0,
        ge=0,
        description="Train with as many workers as there is room for, so many at least, and more "
        "or fewer as nodes come and go; 0: with num_workers only.",
        json_schema_extra=MAY_CHANGE,
    )
    num_shards: int = Field(
        default=0,
        ge=0,
        description="Shards of a batch, fixed for the run's life and at least num_workers; "
        "0: the workers that the run starts with.",
    )
    cpus_per_worker: float = Field(
        default=1, gt=0, description="CPUs that Ray reserves.", json_schema_extra=MAY_CHANGE
    )
    gpus_per_worker: float | None = Field(
        default=None,
        ge=0,
        description="GPUs that Ray reserves; above 0 trains on CUDA with nccl. Unset: as the run "
        "began; a new one gets a GPU for each worker, if there are enough.",
        json_schema_extra=MAY_CHANGE,
    )
    deterministic: bool = Field(
        default=True,
        description="On GPUs, use deterministic algorithms only: what makes a resume exact.",
    )
    threads_per_worker: int = Field(
        default=1, ge=1, description="torch's threads in each worker; other counts, other bits."
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        default="PACK",
        description="How Ray places workers on nodes.",
        json_schema_extra=MAY_CHANGE,
    )
    ray_address: str = Field(
        default=LOCAL,
        description="'local' starts Ray for this run; else the address of a running cluster, "
        "where a job trains that outlives this program: http://head:8265 or head:6379.",
        json_schema_extra=MAY_CHANGE,
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        description="Ray's runtime environment of the workers, a JSON object. Prefect shows it: "
        "secrets belong into the environment.",
        json_schema_extra=MAY_CHANGE,
    )
    strict: bool = Field(
        default=False,
        description="Refuse to resume where library versions or hardware may change the bits.",
        json_schema_extra=MAY_CHANGE,
    )

    @model_validator(mode="before")
    @classmethod
    def _split_range(cls, given: Any) -> Any:
        """`num_workers=(2, 4)`, or `"2,4"` on a command line, is a least and a most."""
        if not isinstance(given, dict):
            return given
        asked = given.get("num_workers")
        if isinstance(asked, str) and "," in asked:
            asked = asked.strip("[]()").split(",")
        if not isinstance(asked, (list, tuple)):
            return given
        if len(asked) != 2:
            raise ValueError(f"num_workers is a number or MIN,MAX, got {given['num_workers']!r}")
        return given | {"min_workers": asked[0], "num_workers": asked[1]}

    @field_validator("settings", "runtime_env", mode="before")
    @classmethod
    def _parse_json(cls, value: object) -> object:
        return json.loads(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.min_workers > self.num_workers:
            raise ValueError(
                f"min_workers is {self.min_workers}, more than num_workers, {self.num_workers}"
            )
        if self.strategy == "fsdp" and self.fewest_workers < self.num_workers:
            raise ValueError(
                "with strategy fsdp other numbers of workers are other bits: ask for one number of "
                f"workers, not for {self.min_workers} to {self.num_workers}, or for ddp"
            )
        if self.num_shards and self.num_shards < self.num_workers:
            raise ValueError(
                f"num_workers is {self.num_workers} but num_shards is {self.num_shards}: "
                "a worker computes at least one shard, so ask for fewer workers or more shards"
            )
        if self.batch_size < self.accumulation_steps * max(self.num_shards, self.num_workers):
            raise ValueError(
                f"batch_size {self.batch_size} leaves nothing for some of "
                f"{self.accumulation_steps} accumulation_steps x "
                f"{max(self.num_shards, self.num_workers)} shards: raise batch_size"
            )
        for name in ("compile", "channels_last"):
            if self.strategy == "fsdp" and getattr(self, name):
                raise ValueError(
                    f"{name} cannot be combined with strategy fsdp: leave it out, or use ddp"
                )
        self._check_init_from()
        if not (
            self.checkpoint_every_epochs or self.checkpoint_every_steps or self.checkpoint_every_s
        ):
            raise ValueError(
                "no checkpoint would be written before the end: set checkpoint_every_epochs, "
                "checkpoint_every_steps or checkpoint_every_s"
            )
        return self

    def _check_init_from(self) -> None:
        if not self.init_from and (self.init_from_optimizer or self.init_from_allow):
            raise ValueError(
                "init_from_optimizer and init_from_allow say how to begin from other weights: "
                "name them with init_from"
            )
        if self.init_from_optimizer and self.init_from.endswith(".safetensors"):
            raise ValueError(
                f"init_from {self.init_from!r} is a file of weights and has no optimizer: name a "
                "run or a checkpoint, or leave out init_from_optimizer"
            )

    @property
    def shards(self) -> int:
        """The number of shards of every batch."""
        return self.num_shards or self.num_workers

    @property
    def fewest_workers(self) -> int:
        """The number of workers without which it does not train."""
        return self.min_workers or self.num_workers

    @property
    def uses_gpu(self) -> bool:
        """Whether workers compute on a GPU."""
        return bool(self.gpus_per_worker)

    @property
    def retention(self) -> RetentionRules:
        """Which checkpoints to keep."""
        return RetentionRules(
            metric=self.monitor,
            order=self.monitor_order,
            keep_last=self.keep_last,
            keep_best=self.keep_best,
            keep_every_steps=self.keep_every_steps,
            keep_newer_than_s=self.keep_newer_than_s,
        )

    @property
    def save_rules(self) -> SaveRules:
        """When to take checkpoints."""
        return SaveRules(
            every_steps=self.checkpoint_every_steps,
            every_epochs=self.checkpoint_every_epochs,
            every_s=self.checkpoint_every_s,
            skips_if_busy=self.checkpoint_backpressure == "skip",
        )

    @property
    def stop_limits(self) -> StopLimits:
        """What the training may take."""
        return StopLimits(
            epochs=self.epochs,
            max_steps=self.max_steps,
            max_duration_s=self.max_duration_s,
            early_stopping_patience=self.early_stopping_patience,
        )

    def step_plan(self, num_samples: int) -> StepPlan:
        """Which samples each step takes of so many."""
        return StepPlan(
            num_samples, self.batch_size, self.accumulation_steps, self.shards, self.drop_last
        )

    def fixed(self) -> Self:
        """The same configuration with what is derived written out."""
        return self.model_copy(update={"num_shards": self.shards})

    def without_secrets(self) -> Self:
        """The same configuration without the workers' environment variables."""
        shown = {name: value for name, value in self.runtime_env.items() if name != "env_vars"}
        return self.model_copy(update={"runtime_env": shown})

    def recorded(self) -> Self:
        """What `run.json` says of it."""
        return self.fixed().without_secrets().without_logins()

    def without_logins(self) -> Self:
        """The same configuration without the users and passwords in its URLs."""
        shown = {name: hide_logins(getattr(self, name)) for name in ("settings", "init_from")}
        return self.model_copy(update=shown)

    def deciding(self) -> dict[str, object]:
        """The fields that decide the numbers or how long it trains, settings and workload aside.

        Without `num_shards` where that was not asked for: it follows the number of workers.
        """
        found = {
            name: getattr(self, name)
            for name, field in TrainConfig.model_fields.items()
            if name in _LENGTH or not _may_change(field)
        }
        left_out = {"workload", "settings"} | ({"num_shards"} if not self.num_shards else set())
        return {name: value for name, value in found.items() if name not in left_out}

    def differences(self, asked: TrainConfig) -> dict[str, tuple[object, object]]:
        """Fields that `asked` gives another value though they may not change, as (was, now)."""
        found: dict[str, tuple[object, object]] = {}
        for name, field in TrainConfig.model_fields.items():
            was, now = getattr(self, name), getattr(asked, name)
            if name == "num_shards" and now == 0:
                continue
            if was == now or _may_change(field):
                continue
            if name == "settings":
                found |= _different_settings(was, now)
            else:
                found[name] = (was, now)
        return found


def _may_change(field: FieldInfo) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("may_change"))


def _different_settings(
    was: dict[str, Any], now: dict[str, Any]
) -> dict[str, tuple[object, object]]:
    pairs = {key: (was.get(key), now.get(key)) for key in {**was, **now}}
    return {f"settings.{key}": pair for key, pair in pairs.items() if pair[0] != pair[1]}


def available_cpus() -> int:
    """The CPUs that a local Ray has."""
    # macOS has no affinity.
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
