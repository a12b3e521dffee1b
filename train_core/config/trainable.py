"""What is trained: a workload or a training function, each with what it is made of.

`TrainConfig.trainable` is one of the two. Whatever differs between them is an attribute that both
have, or a `match` on their types.
"""

from __future__ import annotations

from typing import ClassVar

from train_core.config.checkpoint_options import CheckpointOptions
from train_core.config.function_options import FunctionOptions
from train_core.config.training_options import InitOptions, StepOptions, WorkloadOptions
from train_core.config.worker_options import WorkerOptions
from train_core.policy.findings import EVERYTHING
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


class WorkloadTraining(WorkloadOptions):
    """A workload, which evertrain's loop trains on a pool of workers."""

    has_workload: ClassVar = True
    uses_pool: ClassVar = True
    trains_in_dry_run: ClassVar = True
    ranks_unmeasured: ClassVar = False

    @property
    def is_rehearsed(self) -> bool:
        """Whether a few samples are trained before the first step of a run."""
        return EVERYTHING not in self.accept

    @property
    def without_effect(self) -> set[str]:
        """The names of the parameters that change nothing for what is trained."""
        return set(FunctionOptions.model_fields)


class FunctionTraining(FunctionOptions, WorkloadOptions):
    """A training function, which Ray Train runs; with a predictor, the workload has its data."""

    uses_pool: ClassVar = False
    """Whether the pool's workers train: Ray Train starts its own."""
    trains_in_dry_run: ClassVar = False
    """Whether a dry run trains a step: of a function, it does nothing but the checks."""
    ranks_unmeasured: ClassVar = True
    """Whether a checkpoint without the monitored metric is among the best, as in Ray Train."""
    is_rehearsed: ClassVar = False

    @property
    def has_workload(self) -> bool:
        """Whether `workload` names one: the data of an evaluation and a batch inference."""
        return bool(self.predictor)

    @property
    def without_effect(self) -> set[str]:
        """The names of the parameters that change nothing for what is trained."""
        used = _USED | (_USED_TO_SCORE if self.predictor else set())
        return {name for group in _GROUPS for name in group.model_fields if name not in used}


Trainable = WorkloadTraining | FunctionTraining
