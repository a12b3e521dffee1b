"""A training of a row, in this process, by the engine and in plain torch, and what each leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.pytorch.case import CaseSettings, CaseWorkload
from tests.rank import alone
from train_core.config import TrainConfig
from train_core.policy.samples.randomness import AUGMENT, SampleRandom, derive_seed
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.records.run_record import NEWEST_STEP_RULES
from train_core.storage.run_folder import RunFolder
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
