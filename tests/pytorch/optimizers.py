"""Every optimizer of torch.optim and every schedule of torch.optim.lr_scheduler, as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.pytorch.case import NUM_CLASSES, NUM_INPUTS, Case, Optimizer
from tests.pytorch.models import OnTokens, Plain
from train_core import CombinedOptimizer


class OnlyMatrices(nn.Module):
    """Muon takes matrices only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_INPUTS, 8, bias=False)
        self.last = nn.Linear(8, NUM_CLASSES, bias=False)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


def of(kind: type[Optimizer], **options: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda model: kind(model.parameters(), **options)


def sgd_by(kind: Any, **options: Any) -> Case:
    def schedule(optimizer: Optimizer, total_steps: int) -> Any:
        return kind(optimizer, **options)

    return Case(Plain, of(torch.optim.SGD, lr=0.1, momentum=0.9), schedule)


def plateau(optimizer: Optimizer, total_steps: int) -> Any:
    # Hardly any loss falls by half in an epoch.
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)


def sequential(optimizer: Optimizer, total_steps: int) -> Any:
    warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    after = lr_scheduler.MultiStepLR(optimizer, [1, 2])
    return lr_scheduler.SequentialLR(optimizer, [warm_up, after], [2])


def chained(optimizer: Optimizer, total_steps: int) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


class Shampoo(Optimizer):
    """Multiplies gradients as matrices: BLAS rounds by where in memory one begins."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in (one for one in group["params"] if one.grad is not None):
                    rows = parameter.grad.reshape(parameter.grad.shape[0], -1)
                    step = (rows @ rows.T) @ rows
                    parameter.add_(step.view_as(parameter), alpha=-group["lr"])


def of_both_kinds(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices, and the biases."""
    every = list(model.parameters())
    return [p for p in every if p.ndim > 1], [p for p in every if p.ndim <= 1]


def combined(model: nn.Module) -> Optimizer:
    """The matrices by one optimizer, the biases by another one."""
    matrices, others = of_both_kinds(model)
    return CombinedOptimizer(
        torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(others, lr=0.01)
    )


def halved(optimizer: Optimizer, total_steps: int) -> Any:
    return lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


OPTIMIZERS: dict[str, Case] = {
    "Adadelta": Case(Plain, of(torch.optim.Adadelta, lr=0.5)),
    "Adafactor": Case(Plain, of(torch.optim.Adafactor)),
    "Adagrad": Case(Plain, of(torch.optim.Adagrad, lr=0.05)),
    "Adam": Case(Plain, of(torch.optim.Adam, lr=0.01)),
    "Adam, amsgrad": Case(Plain, of(torch.optim.Adam, lr=0.01, amsgrad=True)),
    "Adam, foreach": Case(Plain, of(torch.optim.Adam, lr=0.01, foreach=True)),
    "Adam, fused": Case(Plain, of(torch.optim.Adam, lr=0.01, fused=True)),
    "Adamax": Case(Plain, of(torch.optim.Adamax)),
    "AdamW": Case(Plain, of(torch.optim.AdamW, lr=0.01)),
    "ASGD": Case(Plain, of(torch.optim.ASGD, lr=0.05)),
    "LBFGS": Case(Plain, of(torch.optim.LBFGS), refused="computes the loss again", refused_from=1),
    "Muon": Case(OnlyMatrices, of(torch.optim.Muon)),
    "NAdam": Case(Plain, of(torch.optim.NAdam)),
    "RAdam": Case(Plain, of(torch.optim.RAdam, lr=0.01)),
    "RMSprop": Case(Plain, of(torch.optim.RMSprop, momentum=0.9, centered=True)),
    "Rprop": Case(Plain, of(torch.optim.Rprop)),
    "one that multiplies matrices": Case(Plain, of(Shampoo)),
    "SGD": Case(Plain, of(torch.optim.SGD, lr=0.1)),
    "SGD, Nesterov": Case(Plain, of(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)),
    "SparseAdam": Case(
        lambda: OnTokens(nn.Embedding(10, 8, sparse=True)),
        lambda model: torch.optim.SparseAdam([model.embedding.weight], lr=0.01),  # type: ignore[union-attr, list-item]  # it is an OnTokens
        refused="is sparse",
    ),
    "CombinedOptimizer": Case(Plain, combined, halved),
    "a list of two optimizers": Case(
        Plain,
        lambda model: [of(torch.optim.SGD)(model), of(torch.optim.SGD)(model)],
        refused="gives a list: give one torch optimizer",
        refused_from=1,
    ),
}

SCHEDULES: dict[str, Case] = {
    "ChainedScheduler": Case(Plain, of(torch.optim.SGD, lr=0.1), chained),
    "ConstantLR": sgd_by(lr_scheduler.ConstantLR, total_iters=3),
    "CosineAnnealingLR": sgd_by(lr_scheduler.CosineAnnealingLR, T_max=6),
    "CosineAnnealingWarmRestarts": sgd_by(lr_scheduler.CosineAnnealingWarmRestarts, T_0=2),
    "CyclicLR": sgd_by(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=2),
    "ExponentialLR": sgd_by(lr_scheduler.ExponentialLR, gamma=0.9),
    "LambdaLR": sgd_by(lr_scheduler.LambdaLR, lr_lambda=lambda step: 0.9**step),
    "LinearLR": sgd_by(lr_scheduler.LinearLR, total_iters=4),
    "MultiplicativeLR": sgd_by(lr_scheduler.MultiplicativeLR, lr_lambda=lambda _: 0.9),
    "MultiStepLR": sgd_by(lr_scheduler.MultiStepLR, milestones=[2, 4]),
    "OneCycleLR": sgd_by(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=6),
    "PolynomialLR": sgd_by(lr_scheduler.PolynomialLR, total_iters=5),
    "ReduceLROnPlateau": Case(Plain, of(torch.optim.SGD, lr=0.1), plateau),
    "ReduceLROnPlateau, of the other order": Case(
        Plain,
        of(torch.optim.SGD, lr=0.1),
        lambda optimizer, _: lr_scheduler.ReduceLROnPlateau(optimizer, mode="max"),
        refused="with mode 'max'",
        refused_from=1,
    ),
    "SequentialLR": Case(Plain, of(torch.optim.SGD, lr=0.1), sequential),
    "StepLR": sgd_by(lr_scheduler.StepLR, step_size=2),
    "SWALR": sgd_by(torch.optim.swa_utils.SWALR, swa_lr=0.01, anneal_epochs=3),
}
