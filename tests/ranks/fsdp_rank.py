"""One rank that trains without checkpoints, and what its live tensors are at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from tests.pytorch.models import Averaged
from tests.rank.tiny import StreamingTiny, Tiny, TinySettings
from tests.ranks.rank import one_of, tell_of_all
from train_core import Batch, TrainConfig
from train_core.errors import EvertrainError
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.fsdp import whole_tensor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.run_folder import RunFolder


class Smooth(Tiny):
    """Has no bias before BatchNorm: its gradient is rounding alone, which AdamW makes large."""

    def model(self) -> nn.Module:
        model = super().model()
        model[0] = nn.Linear(8, 16, bias=False)
        return model


class StreamingSmooth(Smooth, StreamingTiny):
    """Trains on a stream."""


class Counting(Smooth):
    """Counts the collectives of its forward passes, in training and in validation."""

    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.num_collectives = {True: 0, False: 0}

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        with CommDebugMode() as communication:
            outputs = super().forward(model, batch)
        self.num_collectives[model.training] += communication.get_total_counts()
        return outputs


class Published(Smooth):
    """Begins with weights from elsewhere."""

    def initialize(self, model: nn.Module) -> None:
        state = {name: torch.ones_like(value) / 8 for name, value in model.state_dict().items()}
        model.load_state_dict(state)


class Averaging(Smooth):
    """Its average is a part of the model."""

    def model(self) -> nn.Module:
        return Averaged(super().model())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return super().optimizer(model.live)

    def after_step(self, model: nn.Module, step: int) -> None:
        live = model.live.state_dict()
        for name, average in model.average.state_dict().items():
            if average.is_floating_point():
                average.lerp_(live[name], 0.1)
            else:
                average.copy_(live[name])


class Whole(Smooth):
    """Has no blocks: its parameters are gathered all together."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return []


class Tied(nn.Module):
    """Its last layer uses the first one's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.last = nn.Linear(8, 8)
        self.last.weight = self.blocks[0].weight


class TiedTiny(Tiny):
    def model(self) -> nn.Module:
        return Tied()


class LiveTrainer(Trainer):
    """Writes no checkpoint."""

    def save_if_due(self) -> None:
        pass


def main(task: dict[str, Any], environment: dict[str, str], log: Path, outcome: Path) -> None:
    """Be a rank: alone, or in a gloo group. Rank 0 writes what became of all to `outcome`."""
    with one_of(environment, log) as group:
        try:
            found = _train(RunFolder(task["storage"], task["run"]), task["config"], group)
        except EvertrainError as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        tell_of_all(found, group, outcome)


def _train(folder: RunFolder, config: dict[str, Any], group: Group) -> dict[str, Any]:
    trainer = LiveTrainer(folder, with_monitor(TrainConfig.model_validate(config)), 1, group)
    trainer.run()
    workload: Any = trainer.loaded.workload
    model, optimizer = trainer.learner.model, trainer.learner.optimizer
    tensors: dict[str, Tensor] = {**model.state_dict()}
    tensors |= {f"average/{name}": value for name, value in workload.average.items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{name}": value for name, value in values.items()}
    return {
        "tensors": {name: whole_tensor(value).tolist() for name, value in tensors.items()},
        "numbers_here": sum(_local(value).numel() for value in tensors.values()),
        "metrics": trainer.progress.metrics,
        "num_collectives": getattr(workload, "num_collectives", None),
        "names": names(trainer.state.capture()),
        "canonical_names": names(
            {
                "model": get_model_state_dict(model),
                "optimizer": get_optimizer_state_dict(model, optimizer),
            }
        ),
    }


def names(state: dict[str, Any]) -> dict[str, Any]:
    """What the model's and the optimizer's state call parameters and moments."""
    optimizer = state["optimizer"]
    return {
        "model": list(state["model"]),
        "state": {name: sorted(values) for name, values in optimizer["state"].items()},
        "param_groups": [group["params"] for group in optimizer["param_groups"]],
    }


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
