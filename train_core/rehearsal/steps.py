"""Whether the engine trains a workload as plain autograd does, and restores it as it was."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset
from train_core.errors import CheckpointError
from train_core.rank.checkpoint.packing import first_difference, pack, unpack
from train_core.rank.checkpoint.snapshot import check_savable
from train_core.rank.checkpoint.state import model_state, optimizer_state, unsaved_buffers
from train_core.rehearsal.engine_training import EngineTraining
from train_core.results import Finding
from train_core.text.shown_text import few_of
from train_core.tools.plain_training import PlainTraining
from train_core.workload import Workload

_COMPARABLE = (bool, int, float, complex, str, torch.Tensor, np.ndarray, np.generic)
"""Of attributes that hold other objects it is not known whether they are the same."""
_STATES = {"state", "param_groups", "defaults", "_parameters", "_buffers", "_modules", "training"}
"""Attributes of torch's that have states, or make them."""
STEPS = 2
"""How many are compared; one more is made from the state after them."""


@dataclass(frozen=True)
class Trial:
    """What is trained for the trial: new workloads, each on the same few samples."""

    new_workload: Callable[[], Workload[Any]]
    config: TrainConfig
    dataset: Dataset
    total_steps: int
    """Of the training that is rehearsed: the schedule's."""
    device: torch.device

    def engine(self) -> EngineTraining:
        """A training of the engine's; it has not begun."""
        workload, total = self.new_workload(), self.total_steps
        return EngineTraining(workload, self.config, self.dataset, total, self.device)

    def plain(self) -> PlainTraining:
        """A training in plain PyTorch."""
        workload, total = self.new_workload(), self.total_steps
        return PlainTraining(
            workload, self.config, self.dataset, total_steps=total, device=self.device
        )


def try_steps(trial: Trial) -> tuple[EngineTraining, list[Finding]]:
    """The engine's training after `STEPS` steps, and what is wrong with it.

    Raises WorkloadError for what the engine itself refuses.
    """
    plain, engine = trial.plain(), trial.engine()
    engine.begin()
    shards = trial.config.shards
    on = "one shard" if shards == 1 else f"{shards} shards"
    for step in range(STEPS):
        plain.step(step)
        engine.step()
        said = _difference(_left_by(plain), _left_by(engine.learner))
        if not said:
            continue
        if repeated := _differs_by_itself(trial, step):
            return engine, [
                Finding(
                    name="repeatable",
                    is_refused=False,
                    message=f"the same steps twice from the same seeds give two results "
                    f"({repeated}): a resume will not be exact. prepare() draws from its "
                    "argument `random`; the model, the loss and hooks from torch's, numpy's or "
                    "Python's global generators, which are seeded for each step. Keep nothing "
                    "between steps outside of the state",
                )
            ]
        return engine, [
            Finding(
                name="gradients",
                is_refused=True,
                message=f"on {on} step {step + 1} of the engine is not that of plain PyTorch: "
                f"{said}. Train on one shard (num_shards 1), or take out what plain autograd over "
                "the parts of a batch would not do",
            )
        ]
    return engine, []


def try_resume(trial: Trial, engine: EngineTraining) -> Iterator[Finding]:
    """Whether a training that is restored from its state goes on as it would have.

    `engine` has made `STEPS` steps, and makes one more. Raises WorkloadError for what cannot be
    saved.
    """
    captured = engine.state.capture()
    check_savable(captured)
    plain, tensors = pack(captured)
    stored = json.loads(json.dumps(plain))
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    resumed = trial.engine()
    try:
        resumed.resume(unpack(stored, copies), STEPS)
    except CheckpointError as error:
        yield _lost(str(error))
        return
    if said := first_difference(unpack(stored, copies), resumed.state.capture()):
        yield _lost(f"what is restored is not what was saved: {said}")
        return
    engine.step()
    resumed.step()
    if said := _difference(_left_by(engine.learner), _left_by(resumed.learner)):
        lost = _other_attributes(engine, resumed)
        because = f"; in no state are {few_of(lost)}, which differ" if lost else ""
        yield _lost(f"the step after a resume is another one: {said}{because}")


def _other_attributes(one: EngineTraining, other: EngineTraining) -> list[str]:
    """The names of attributes beside all states that are not the same in two trainings."""
    pairs = [
        (type(one.workload).__name__, one.workload, other.workload),
        ("optimizer", one.learner.optimizer, other.learner.optimizer),
        ("schedule", one.learner.schedule, other.learner.schedule),
    ]
    modules = dict(other.learner.model.named_modules())
    pairs += [
        (name or type(module).__name__, module, modules[name])
        for name, module in one.learner.model.named_modules()
        if name in modules
    ]
    return [
        f"{owner}.{name}"
        for owner, first, second in pairs
        for name, value in getattr(first, "__dict__", {}).items()
        if name not in _STATES
        and _is_comparable(value)
        and first_difference({name: value}, {name: getattr(second, name, None)})
    ]


def _is_comparable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, (str, int)) for key in value) and all(
            map(_is_comparable, value.values())
        )
    if isinstance(value, (list, tuple, deque)):
        return all(map(_is_comparable, value))
    return isinstance(value, _COMPARABLE)


def _lost(said: str) -> Finding:
    return Finding(
        name="state",
        is_refused=True,
        message=f"{said}. Keep all that a step changes in parameters, buffers, the optimizer, the "
        "schedule, or in state_dict() of the workload",
    )


def _differs_by_itself(trial: Trial, step: int) -> str:
    """Where two trainings in plain PyTorch differ after this step; empty: nowhere."""
    one, other = trial.plain(), trial.plain()
    for number in range(step + 1):
        one.step(number)
        other.step(number)
    return _difference(_left_by(one), _left_by(other))


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    return first_difference(one, other) or first_difference(other, one)


def _left_by(training: Any) -> dict[str, Any]:
    """All that a step leaves, gradients first: what is made of them differs as they do."""
    model: nn.Module = training.model
    optimizer: torch.optim.Optimizer = training.optimizer
    return {
        "gradient": {name: p.grad for name, p in model.named_parameters()},
        "model": model_state(model),
        "buffer": unsaved_buffers(model),
        "optimizer": optimizer_state(model, optimizer),
        "rates": [group["lr"] for group in optimizer.param_groups],
    }
