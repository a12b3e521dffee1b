"""A training function, or the trainer that a factory returns, made ready for one attempt."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

from ray.train import CheckpointConfig
from ray.train.v2.api.config import FailureConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.torch.torch_trainer import TorchTrainer

from train_core.cluster.lent import lent_places
from train_core.config import TrainConfig
from train_core.errors import WorkloadError, users_code
from train_core.functions.ray_checkpoints import filesystem_of
from train_core.functions.ray_private_hooks import (
    EndWithDriver,
    PlaceWorkers,
    PrepareProcesses,
    keep_lent_places,
    with_intercepted_calls,
)
from train_core.functions.task import FunctionTask
from train_core.loading import load_function


def new_trainer(config: TrainConfig) -> DataParallelTrainer:
    """The trainer of the configuration. Raises WorkloadError if there is none."""
    if config.trainer:
        return _made_by_factory(config.trainer)
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


def _made_by_factory(name: str) -> DataParallelTrainer:
    """The trainer that the factory returns. Raises WorkloadError, or UserCodeError for its own."""
    factory = load_function(name)
    if needed := needed_by(factory):
        raise WorkloadError(
            f"trainer {name} needs {', '.join(needed)}: evertrain calls it without arguments. Give "
            "them defaults, or name a function that calls it with them"
        )
    refused = refusing_fit(
        f"trainer {name} calls .fit()",
        "let it return the trainer, and call .fit() on what it returns where you run your script "
        'without evertrain, as below `if __name__ == "__main__":`',
    )
    with users_code("train", f"trainer {name}"), refused:
        found = factory()
    if not isinstance(found, DataParallelTrainer):
        raise WorkloadError(
            f"{name} returned {type(found).__name__}, and not a TorchTrainer or another "
            "DataParallelTrainer of Ray Train V2"
        )
    return found


@contextmanager
def refusing_fit(what: str, mended_by: str) -> Iterator[None]:
    """Raise WorkloadError where a trainer is run inside the block: evertrain runs it itself.

    `what` says who calls .fit(), `mended_by` what to do instead; the error has both.
    """

    def refuse(self: DataParallelTrainer) -> NoReturn:  # noqa: ARG001 (of a method)
        raise WorkloadError(f"{what}, but evertrain runs the trainer itself: {mended_by}")

    fit = DataParallelTrainer.fit
    DataParallelTrainer.fit = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataParallelTrainer.fit = fit  # type: ignore[method-assign]


def needed_by(function: Callable[..., Any]) -> list[str]:
    """The parameters that have no default."""
    return [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def make_ready(trainer: DataParallelTrainer, task: FunctionTask) -> DataParallelTrainer:
    """The trainer, which reports into the run folder and makes one attempt."""
    folder, lent = task.folder, lent_places()
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
        callbacks=[
            *(run.callbacks or []),
            EndWithDriver(task),
            PrepareProcesses(task),
            *([PlaceWorkers(lent.placement_group)] if lent else []),
        ],
    )
    if lent:
        keep_lent_places(trainer)
    trainer.train_run_context = replace(trainer.train_run_context, run_config=ready)
    task = replace(task, has_validation=trainer.validation_config is not None)
    # The driver calls the validation function, which outlives the attempt.
    trainer.validation_config = None
    trainer.train_loop_per_worker = with_intercepted_calls(trainer.train_loop_per_worker, task)
    return trainer
