"""The engine's own training of a row, in this process, and what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tests.pytorch.case import CaseSettings, CaseWorkload
from tests.pytorch.oracle import Oracle
from tests.rank import alone
from train_core.config import TrainConfig
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.records.run_record import NEWEST_STEP_RULES
from train_core.storage.run_folder import RunFolder


def config_of(name: str, num_shards: int, gpus: int = 0) -> TrainConfig:
    given: dict[str, Any] = {
        "workload": "tests.pytorch.case:CaseWorkload",
        "settings": {"name": name},
        "num_shards": num_shards,
        "batch_size": 12,
        "epochs": 2,
        "checkpoint_backpressure": "wait",
        "monitor": "validation/loss",
        "monitor_order": "min",
        "gpus_per_worker": gpus,
    }
    case = CaseWorkload(CaseSettings(name=name)).case
    return TrainConfig.model_validate(given | dict(case.config))


def oracle(
    name: str, num_shards: int, step_rules: int = NEWEST_STEP_RULES, gpus: int = 0
) -> dict[str, Any]:
    """What plain torch leaves."""
    workload = CaseWorkload(CaseSettings(name=name))
    device = torch.device("cuda" if gpus else "cpu")
    trained = Oracle(workload, config_of(name, num_shards, gpus), step_rules, device).run()
    return left_by(trained.model, trained.optimizer, trained.schedule)


def engine(
    name: str, num_shards: int, folder: RunFolder, *cuts: int, gpus: int = 0
) -> dict[str, Any]:
    """What the engine leaves, after an end after each of the steps `cuts` and a resume."""
    config = config_of(name, num_shards, gpus)
    if not folder.exists():
        alone.create(folder, config)
    for attempt, max_steps in enumerate((*cuts, 0), start=1):
        asked = config.model_copy(update={"max_steps": max_steps})
        trainer = Trainer(
            folder, with_monitor(asked), attempt, Group.current(uses_gpu=config.uses_gpu)
        )
        trainer.run()
    state = trainer.learner
    return left_by(state.model, state.optimizer, state.schedule)


def left_by(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any) -> dict[str, Any]:
    """Every tensor and every number that a training leaves, by its path."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict() if schedule is not None else {},
        "trained": {name: p.requires_grad for name, p in model.named_parameters()},
        "modes": {name: module.training for name, module in model.named_modules()},
    }
    return dict(_leaves(state, ()))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, (*path, str(number)))
    elif isinstance(value, Tensor):
        yield "/".join(path), _bits(value)
    else:
        yield "/".join(path), repr(value)


def _bits(tensor: Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().cpu().to_dense().contiguous().flatten()
    return (tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes())


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The paths at which they differ."""
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))
