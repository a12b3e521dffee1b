"""What a training has to give, computed in plain torch, with the samples read one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from train_core.config import TrainConfig
from train_core.engine.tools.plain_training import PlainTraining
from train_core.policy.samples.randomness import AUGMENT, SampleRandom, derive_seed
from train_core.storage.records.run_record import NEWEST_STEP_RULES
from train_core.workload import Workload, seed_generators

_FIRST_SEED = 67280421310721


class Oracle(PlainTraining):
    """A training of a workload whose dataset gives samples, and no columns."""

    def __init__(
        self, workload: Workload[Any], config: TrainConfig, step_rules: int = NEWEST_STEP_RULES
    ) -> None:
        seed_generators(_FIRST_SEED)
        dataset: Any = workload.dataset("train")
        super().__init__(workload, config, dataset, step_rules=step_rules)

    def run(self) -> Oracle:
        """Train to the end."""
        for step in range(self.total_steps):
            self.step(step)
        return self

    def batch(self, epoch: int, indices: np.ndarray[Any, Any]) -> dict[str, Tensor]:
        samples = []
        for index in indices:
            seed_generators(derive_seed(self.config.seed, AUGMENT, epoch, int(index)))
            samples.append(self.dataset[int(index)])
        columns = {name: np.stack([np.asarray(s[name]) for s in samples]) for name in samples[0]}
        return self.workload.prepare(columns, SampleRandom(self.config.seed, epoch, indices))
