"""One model with its optimizer, as a row of the table: what plain torch trains, and the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from train_core import ArrayDataset, Batch, Columns, Settings, Workload
from train_core.datasets.protocols import Dataset, Split
from train_core.policy.samples.randomness import SampleRandom

Optimizer = torch.optim.Optimizer

NUM_INPUTS, NUM_TOKENS, NUM_CLASSES = 16, 10, 3


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def no_schedule(optimizer: Optimizer, total_steps: int) -> Any:
    return None


@dataclass(frozen=True)
class Case:
    """What a row trains; a test compares it with plain torch, or expects its refusal."""

    model: Callable[[], nn.Module]
    """Called with the inputs, of shape (N, 16), and tokens, of shape (N, 6)."""
    optimizer: Callable[[nn.Module], Any] = adamw
    schedule: Callable[[Optimizer, int], Any] = no_schedule
    after_step: Callable[[nn.Module, int], None] | None = None
    dataset: Callable[[ArrayDataset], Any] | None = None
    """Makes the training split of the columns."""
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    config: Mapping[str, Any] = field(default_factory=dict)
    num_train: int = 36
    refused: str = ""
    """A part of the sentence with which it is refused; empty: it is exact."""
    refused_from: int = 2
    """On so many shards and more."""
    is_compared: bool = True
    """Whether what is not refused is compared with plain torch."""
    resumes: bool = True
    """Whether the table also interrupts it."""


class CaseSettings(Settings):
    name: str


class CaseWorkload(Workload[CaseSettings]):
    """The row of that name."""

    Settings = CaseSettings

    def __init__(self, settings: CaseSettings) -> None:
        super().__init__(settings)
        # Not before: the table imports this module.
        from tests.pytorch.table import TABLE

        self.case = TABLE[settings.name]

    def model(self) -> nn.Module:
        return self.case.model()

    def optimizer(self, model: nn.Module) -> Any:
        return self.case.optimizer(model)

    def schedule(self, optimizer: Optimizer, total_steps: int) -> Any:
        return self.case.schedule(optimizer, total_steps)

    def dataset(self, split: Split) -> Dataset:
        rng = np.random.Generator(np.random.Philox(["train", "validation", "test"].index(split)))
        number = self.case.num_train if split == "train" else 8
        x = rng.standard_normal((number, NUM_INPUTS)).astype(np.float32)
        label = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)
        tokens = rng.integers(0, NUM_TOKENS, (number, 6))
        data = ArrayDataset(x=x, tokens=tokens, label=label)
        if split == "train" and self.case.dataset is not None:
            return self.case.dataset(data)  # type: ignore[no-any-return]  # as the row has it
        return data

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        names = {"inputs": "x", "tokens": "tokens", "targets": "label"}
        return {
            name: torch.from_numpy(np.ascontiguousarray(columns[column]))
            for name, column in names.items()
        }

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["inputs"], batch["tokens"])

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return self.case.loss(outputs, batch["targets"])

    def metrics(self) -> dict[str, Any]:
        return {}

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        return {"prediction": outputs.argmax(1)}

    def after_step(self, model: nn.Module, step: int) -> None:
        if self.case.after_step is not None:
            self.case.after_step(model, step)
