"""All parameters of a training, assembled from the groups in `*_options.py`.

A new parameter is a field there; this file has only the checks across groups.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar, assert_never

from pydantic import ValidationError, model_validator

from train_core.config.checkpoint_options import CheckpointOptions
from train_core.config.function_options import FunctionOptions
from train_core.config.trainable import FunctionTraining, Trainable, WorkloadTraining
from train_core.config.training_options import InitOptions, StepOptions, WorkloadOptions
from train_core.config.worker_options import WorkerOptions
from train_core.errors import ConfigError
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.policy.logins import hide_logins
from train_core.policy.options import Options, may_change
from train_core.policy.samples.steps import StepPlan
from train_core.policy.stop_reasons import LengthOptions, MonitorOptions, StopLimits
from train_core.text.shown_text import got

_GroupT = TypeVar("_GroupT", bound=Options)


# pydantic lists the fields of the last base first: this is the order of run.json and of --help.
class TrainConfig(
    WorkerOptions,
    RetentionRules,
    CheckpointOptions,
    StopLimits,
    MonitorOptions,
    StepOptions,
    InitOptions,
    LengthOptions,
    FunctionOptions,
    WorkloadOptions,
):
    """How to train one workload. Unknown names are an error; negative numbers too."""

    def __hash__(self) -> int:
        # Not of all fields, of which some are dicts; equal configurations have equal ones.
        return hash((self.workload, self.seed, self.epochs, self.batch_size))

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        match self.trainable:
            case FunctionTraining():
                self._check_unused()
            case WorkloadTraining():
                self._check_batch()
            case other:
                assert_never(other)
        return self

    def _check_batch(self) -> None:
        shards = max(self.num_shards, self.num_workers)
        if self.batch_size < self.accumulation_steps * shards:
            raise ValueError(
                f"batch_size {self.batch_size} leaves nothing for some of "
                f"{self.accumulation_steps} accumulation_steps x {shards} shards: raise batch_size"
            )
        if self.strategy == "fsdp":
            self._check_fsdp()

    def _check_unused(self) -> None:
        """Refuse what a training function decides itself."""
        fields = TrainConfig.model_fields
        unused = [
            name
            for name in sorted(self.trainable.without_effect)
            if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]
        if unused:
            raise ValueError(
                f"{', '.join(unused)} would change nothing: a training function decides that "
                "itself. Leave it out, and give the function what it needs in train_loop_config"
            )

    def _check_fsdp(self) -> None:
        if self.fewest_workers < self.num_workers:
            raise ValueError(
                "with strategy fsdp other numbers of workers are other bits: ask for one number of "
                f"workers, not for {self.min_workers} to {self.num_workers}, or for ddp"
            )
        for name in ("compile", "channels_last"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} cannot be combined with strategy fsdp: leave it out, or use ddp"
                )

    @classmethod
    def of(cls, **asked: Any) -> Self:
        """The configuration of these parameters. Raises ConfigError for the first that is wrong."""
        try:
            return cls(**asked)
        except ValidationError as error:
            found = error.errors(include_url=False)
            # A function's name is the workload's, too.
            first = next((one for one in found if {*one["loc"]} & asked.keys()), found[0])
            message = first["msg"].removeprefix("Value error, ")
            if place := first["loc"]:
                name = ": ".join(map(str, place))
                message = f"{name}: {message}{got(str(place[0]), first['input'])}"
            raise ConfigError(message) from error

    @property
    def ranks_unmeasured(self) -> bool:
        """Whether a checkpoint without the metric is among the best, as Ray Train has it."""
        return self.trainable.ranks_unmeasured

    @property
    def trainable(self) -> Trainable:
        """What is trained: the workload, or the training function."""
        if self.train_fn or self.trainer:
            return self.part(FunctionTraining)
        return self.part(WorkloadTraining)

    @property
    def goes_on_in_place(self) -> bool:
        """Whether workers that have lost another one train on, in the same processes.

        Not on GPUs, as no group of nccl's can be left that has lost a rank; and not sharded models,
        of which nobody else has what a dead rank had. docs/design/in-place.md
        """
        is_fixed = self.num_workers > 1 and not self.min_workers
        return is_fixed and not self.uses_gpu and self.strategy != "fsdp"

    @property
    def has_workload(self) -> bool:
        """Whether `workload` names one: the data of an evaluation and a batch inference."""
        return self.trainable.has_workload

    @property
    def shown_name(self) -> str:
        """What lists call `workload`: its class, or a function with its module.

        Most training functions have the same few names.
        """
        module, _, name = self.workload.rpartition(":")
        return name if self.has_workload else f"{module.rpartition('.')[2]}:{name}"

    def has_effect(self, name: str) -> bool:
        """Whether the parameter of that name changes anything for what is trained."""
        assert name in TrainConfig.model_fields
        return name not in self.trainable.without_effect

    def part(self, group: type[_GroupT]) -> _GroupT:
        """The options of a group, which were checked with all others and are not checked again."""
        return group.model_construct(**{name: getattr(self, name) for name in group.model_fields})

    def step_plan(self, num_samples: int) -> StepPlan:
        """Which samples each step takes of so many."""
        return StepPlan(num_samples, self, self.shards)

    def fixed(self) -> Self:
        """The same configuration with what is derived written out."""
        if not self.has_effect("num_shards"):
            return self
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
        with_urls = ("settings", "init_from", "train_loop_config")
        shown = {name: hide_logins(getattr(self, name)) for name in with_urls}
        return self.model_copy(update=shown)

    def deciding(self) -> dict[str, object]:
        """The fields that decide the numbers or how long it trains, settings and workload aside.

        Without `num_shards` where that was not asked for: it follows the number of workers. What is
        computed without shards, by a training function, may depend on its workers.
        """
        also = {*LengthOptions.model_fields, "train_loop_config", "predictor"}
        if not self.has_effect("num_shards"):
            also.add("num_workers")
        found = {
            name: getattr(self, name)
            for name, field in TrainConfig.model_fields.items()
            if name in also or not may_change(field)
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
            if was == now or may_change(field):
                continue
            if name == "settings":
                found |= _different_settings(was, now)
            else:
                found[name] = (was, now)
        return found


def _different_settings(
    was: dict[str, Any], now: dict[str, Any]
) -> dict[str, tuple[object, object]]:
    pairs = {key: (was.get(key), now.get(key)) for key in {**was, **now}}
    return {f"settings.{key}": pair for key, pair in pairs.items() if pair[0] != pair[1]}
