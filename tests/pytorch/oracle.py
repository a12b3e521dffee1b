"""What a training has to give, computed in plain torch, with the samples read one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from train_core.config import TrainConfig
from train_core.policy.samples.randomness import AUGMENT, SampleRandom, derive_seed
from train_core.storage.records.run_record import NEWEST_STEP_RULES
from train_core.tools.plain_training import CPU, PlainTraining
from train_core.workload import Workload, seed_generators

_FIRST_SEED = 67280421310721


class Oracle(PlainTraining):
    """A training of a workload whose dataset gives samples, and no columns."""

    def __init__(
        self,
        workload: Workload[Any],
        config: TrainConfig,
        step_rules: int = NEWEST_STEP_RULES,
        device: torch.device = CPU,
    ) -> None:
        seed_generators(_FIRST_SEED)
        dataset: Any = workload.dataset("train")
        super().__init__(workload, config, dataset, step_rules=step_rules, device=device)

    def run(self) -> Oracle:
        for step in range(self.total_steps):
            self.step(step)
            if self.waits_for_metric and (step + 1) % self.steps_per_epoch == 0:
                self.schedule.step(self._validation_loss())
        return self

    @torch.no_grad()
    def _validation_loss(self) -> float:
        """The mean over the validation split, which is one batch."""
        validation: Any = self.workload.dataset("validation")
        assert len(validation) <= self.config.eval_batch_size
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        batch = _of_torchs_memory(self.workload.prepare(validation.columns, None))
        batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
        use_bf16 = self.config.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=use_bf16):
            loss = self.workload.loss(self.workload.forward(self.model, batch), batch)
        for module, mode in modes:
            module.training = mode
        # torchmetrics adds up a loss for each sample, in single precision.
        return float(
            (loss * torch.ones(len(validation), device=self.device)).sum().double()
            / len(validation)
        )

    def batch(self, epoch: int, indices: np.ndarray[Any, Any]) -> dict[str, Tensor]:
        samples = []
        for index in indices:
            seed_generators(derive_seed(self.config.seed, AUGMENT, epoch, int(index)))
            samples.append(self.dataset[int(index)])
        columns = {name: np.stack([np.asarray(s[name]) for s in samples]) for name in samples[0]}
        random = SampleRandom(self.config.seed, epoch, indices)
        return _of_torchs_memory(self.workload.prepare(columns, random))


def _of_torchs_memory(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """BLAS rounds by where a matrix begins, and a numpy array begins anywhere."""
    return {name: tensor.clone() for name, tensor in batch.items()}
