"""The engine's own training in this process: no storage, no journal, no other ranks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset
from train_core.errors import NotFiniteError
from train_core.rank.checkpoint.state import TrainingState
from train_core.rank.data.train_loader import TrainLoader
from train_core.rank.distributed.group import Group, use_deterministic_algorithms
from train_core.rank.learner import Learner
from train_core.rank.passes import backward_passes, weighted_loss
from train_core.storage.records.run_record import NEWEST_STEP_RULES
from train_core.workload import Workload


class EngineTraining:
    """A training of `workload` on `dataset`, one step at a time, as a rank alone trains it.

    `total_steps` are those of the schedule.
    """

    def __init__(
        self,
        workload: Workload[Any],
        config: TrainConfig,
        dataset: Dataset,
        total_steps: int,
        device: torch.device,
    ) -> None:
        torch.set_num_threads(config.threads_per_worker)
        use_deterministic_algorithms(config, device, NEWEST_STEP_RULES)
        group = Group(rank=0, world_size=1, device=device)
        self.learner = Learner(workload, config, group, total_steps)
        self.state = TrainingState()
        """All that its next step depends on, but for the position in the data."""
        self.learner.add_to(self.state)
        self.workload = workload
        self._loader = TrainLoader(workload, dataset, config, group, has_equal_passes=False)
        self._step = 0
        self._loss = partial(weighted_loss, workload, self.learner, config, group)

    def begin(self) -> None:
        """Start from the workload's first weights."""
        self.learner.begin(None)
        self._loader.start(0, 0)

    def resume(self, state: dict[str, Any], step: int) -> None:
        """Start from the state after `step` steps."""
        self.state.restore(state)
        self._step = step
        self._loader.start(0, step)

    def step(self) -> None:
        """One step of the optimizer. Raises NotFiniteError for the loss of the first one."""
        losses: list[Tensor] = []
        backward_passes(
            self.learner, self._loader, self._loss, lambda _, loss: losses.append(loss.detach())
        )
        loss = float(torch.stack(losses).sum())
        # The steps after it may be on samples that come later in the training.
        if self._step == 0 and not math.isfinite(loss):
            raise NotFiniteError(1, loss, None)
        self.learner.exchange()
        self.learner.apply_gradients(self._step)
        self._step += 1
        self.workload.after_step(self.learner.model, self._step)
