"""What the trainer of a factory says of workers and checkpoints, as evertrain's parameters."""

from __future__ import annotations

from typing import Any

from ray.train import CheckpointConfig
from ray.train.v2.api.config import FailureConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from train_core.cluster.resources import check_resources
from train_core.config import TrainConfig
from train_core.errors import WorkloadError
from train_core.functions.ray_private_hooks import resources_of
from train_core.functions.trainer import needed_by, new_trainer, refusing_fit
from train_core.loading import load_function
from train_core.policy.checkpoints.retention import RetentionOptions

_Decided = dict[str, tuple[Any, str]]
"""Parameters that a trainer decides: the value, and what the trainer says."""


def with_trainers_settings(
    config: TrainConfig, recorded: TrainConfig | None = None, *, nodes_wait_s: float = 0
) -> TrainConfig:
    """The configuration with what the factory's trainer asks for, in Ray's meaning.

    `recorded` is what the run was asked last, if it exists: a factory may be changed later. Raises
    WorkloadError if there is no such function, if it cannot be run, or if a parameter was given
    that the trainer has another value for; ResourceError if its workers leave Ray Data no CPU for
    its datasets, on a cluster whose nodes are given `nodes_wait_s` to be there.
    """
    for name in filter(None, (config.train_fn, config.trainer, config.predictor)):
        refused = refusing_fit(
            f"the module of {name} calls .fit() when it is imported",
            'put the call below `if __name__ == "__main__":`, or put the trainer into a function '
            "that returns it, and leave out .fit()",
        )
        with refused:
            load_function(name)
    if not config.trainer:
        _check_parameters(config)
        return config
    trainer = new_trainer(config)
    scaling = trainer.scaling_config
    if not isinstance(scaling.num_workers, int) or scaling.num_workers < 1:
        raise WorkloadError(
            f"the trainer of {config.trainer} has num_workers={scaling.num_workers!r}: evertrain "
            "runs it with a fixed number of at least 1"
        )
    each = resources_of(scaling)
    decided = {**_of_scaling(scaling, each), **_of_checkpoints(trainer, config)}
    _check_asked(config, recorded, decided)
    failures = (trainer.run_config.failure_config or FailureConfig()).max_failures
    said = config.model_copy(
        update={
            **{name: value for name, (value, _) in decided.items()},
            "max_failures": config.max_failures or failures,
        }
    )
    if trainer.datasets and each.get("CPU"):
        check_resources(said, nodes_wait_s, reads_by_ray=True)
    return said


def _of_scaling(scaling: Any, each: dict[str, float]) -> _Decided:
    cpus, gpus = each.get("CPU", 0), each.get("GPU", 0)
    found: _Decided = {
        "num_workers": (scaling.num_workers, f"num_workers={scaling.num_workers}"),
        "gpus_per_worker": (gpus, f"{gpus:g} GPUs for each worker"),
        "placement_strategy": (
            scaling.placement_strategy,
            f"placement_strategy={scaling.placement_strategy!r}",
        ),
    }
    if cpus:
        found["cpus_per_worker"] = (cpus, f"{cpus:g} CPUs for each worker")
    return {name: (value, f"{said} in its ScalingConfig") for name, (value, said) in found.items()}


def _of_checkpoints(trainer: DataParallelTrainer, config: TrainConfig) -> _Decided:
    checkpoints = trainer.run_config.checkpoint_config or CheckpointConfig()
    kept, metric = checkpoints.num_to_keep, checkpoints.checkpoint_score_attribute
    order = checkpoints.checkpoint_score_order
    found: _Decided = {}
    if metric:
        found["monitor"] = (metric, f"checkpoint_score_attribute={metric!r}")
        found["monitor_order"] = (order, f"checkpoint_score_order={order!r}")
    if kept is not None:
        said = f"num_to_keep={kept}"
        found["keep_last"] = (1 if metric or config.monitor else kept, said)
        found["keep_best"] = (kept, said)
    elif not _has_own_retention(config):
        # Ray keeps all of them, if nobody says anything.
        found["keep_every_steps"] = (1, "no num_to_keep")
    return {
        name: (value, f"{said} in its CheckpointConfig") for name, (value, said) in found.items()
    }


def _has_own_retention(config: TrainConfig) -> bool:
    fields = RetentionOptions.model_fields
    return any(getattr(config, name) != field.default for name, field in fields.items())


def _check_asked(config: TrainConfig, recorded: TrainConfig | None, decided: _Decided) -> None:
    """Raise WorkloadError if a parameter was given another value than the trainer has for it."""
    for name, (value, said) in decided.items():
        asked = getattr(config, name)
        unasked = {TrainConfig.model_fields[name].default, value}
        if recorded is not None:
            # Of an earlier attempt, whose trainer may have said something else.
            unasked.add(getattr(recorded, name))
        if asked not in unasked:
            raise WorkloadError(
                f"{name} is {asked!r}, and the trainer of {config.trainer} has {said}: say it "
                f"there, or leave {name} out"
            )


def _check_parameters(config: TrainConfig) -> None:
    """Raise WorkloadError if the training function takes other arguments than Ray gives it."""
    needed = needed_by(load_function(config.train_fn))
    if len(needed) > 1:
        raise WorkloadError(
            f"{config.train_fn} needs {', '.join(needed)}: a training function takes nothing, or "
            "one argument, which is train_loop_config"
        )
