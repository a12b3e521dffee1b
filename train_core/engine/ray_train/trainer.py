"""A training function, or the trainer that a factory returns, made ready for one attempt."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from ray.train import CheckpointConfig
from ray.train.v2.api.config import FailureConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.torch.torch_trainer import TorchTrainer

from train_core.config import LOCAL, TrainConfig, available_cpus
from train_core.engine.ray_train.seam import (
    EndWithDriver,
    resources_of,
    with_seam,
)
from train_core.engine.ray_train.source import filesystem_of
from train_core.engine.ray_train.task import FunctionTask
from train_core.errors import ResourceError, WorkloadError
from train_core.loading import load_function


def new_trainer(config: TrainConfig) -> DataParallelTrainer:
    """The trainer of the configuration. Raises WorkloadError if there is none."""
    if config.trainer:
        found = load_function(config.trainer)()
        if not isinstance(found, DataParallelTrainer):
            raise WorkloadError(
                f"{config.trainer} returned {type(found).__name__}, and not a TorchTrainer or "
                "another DataParallelTrainer of Ray Train V2"
            )
        return found
    resources = {"CPU": config.cpus_per_worker}
    if config.gpus_per_worker:
        resources["GPU"] = config.gpus_per_worker
    return TorchTrainer(
        load_function(config.train_fn),
        train_loop_config=config.train_loop_config,
        scaling_config=ScalingConfig(
            num_workers=config.num_workers,
            use_gpu=config.uses_gpu,
            resources_per_worker=resources,
            placement_strategy=config.placement_strategy,
        ),
    )


def with_trainers_settings(config: TrainConfig) -> TrainConfig:
    """The configuration with what the factory's trainer asks for, in Ray's meaning.

    Raises WorkloadError if there is no such function, or if it cannot be run.
    """
    if not config.trainer:
        _check_parameters(config)
        return config
    trainer = new_trainer(config)
    scaling, run = trainer.scaling_config, trainer.run_config
    if not isinstance(scaling.num_workers, int) or scaling.num_workers < 1:
        raise WorkloadError(
            f"the trainer of {config.trainer} has num_workers={scaling.num_workers!r}: evertrain "
            "runs it with a fixed number of at least 1"
        )
    if config.num_workers not in (1, scaling.num_workers):
        raise WorkloadError(
            f"num_workers is {config.num_workers}, and the trainer of {config.trainer} has "
            f"{scaling.num_workers} in its ScalingConfig: say it there"
        )
    each = resources_of(scaling)
    if trainer.datasets and config.ray_address == LOCAL:
        _check_room_for_data(scaling.num_workers * each.get("CPU", 0), config)
    checkpoints = run.checkpoint_config or CheckpointConfig()
    kept, metric = checkpoints.num_to_keep, checkpoints.checkpoint_score_attribute or config.monitor
    rules: dict[str, Any] = {"keep_every_steps": 1}
    if kept is not None:
        rules = {"keep_last": 1 if metric else kept, "keep_best": kept}
    return config.model_copy(
        update={
            "num_workers": scaling.num_workers,
            "cpus_per_worker": each.get("CPU", 0) or config.cpus_per_worker,
            "gpus_per_worker": each.get("GPU", 0),
            "monitor": metric,
            "monitor_order": checkpoints.checkpoint_score_order or config.monitor_order,
            "max_failures": config.max_failures
            or (run.failure_config or FailureConfig()).max_failures,
            **rules,
        }
    )


def _check_room_for_data(cpus: float, config: TrainConfig) -> None:
    """Raise ResourceError if the workers take all CPUs: Ray Data would wait for one for ever."""
    if cpus >= available_cpus():
        raise ResourceError(
            f"the workers of {config.trainer} take {cpus:g} CPUs of this machine's "
            f"{available_cpus()}, and Ray Data, which reads its datasets, needs one: ask for fewer "
            "workers, or for less than a CPU each (resources_per_worker)"
        )


def _check_parameters(config: TrainConfig) -> None:
    """Raise WorkloadError if the training function takes other arguments than Ray gives it."""
    function = load_function(config.train_fn)
    needed = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        raise WorkloadError(
            f"{config.train_fn} needs {', '.join(needed)}: a training function takes nothing, or "
            "one argument, which is train_loop_config"
        )


def make_ready(trainer: DataParallelTrainer, task: FunctionTask) -> DataParallelTrainer:
    """The trainer, which reports into the run folder and makes one attempt."""
    folder = task.folder
    above, _, name = folder.store.path("").rstrip("/").rpartition("/")
    # Its class in Ray Train V2 is another one than its annotation says.
    run: Any = trainer.run_config
    trainer.run_config = ready = replace(
        run,
        name=name,
        storage_path=above,
        storage_filesystem=filesystem_of(folder.store),
        # The supervisor begins again, and the run's own retention deletes checkpoints.
        failure_config=FailureConfig(
            max_failures=0, controller_failure_limit=0, max_preemption_failures=0
        ),
        checkpoint_config=replace(run.checkpoint_config or CheckpointConfig(), num_to_keep=None),
        callbacks=[*(run.callbacks or []), EndWithDriver(task)],
    )
    trainer.train_run_context = replace(trainer.train_run_context, run_config=ready)
    task = replace(task, has_validation=trainer.validation_config is not None)
    # The driver calls the validation function, which outlives the attempt.
    trainer.validation_config = None
    trainer.train_loop_per_worker = with_seam(trainer.train_loop_per_worker, task)
    return trainer
