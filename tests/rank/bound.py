"""A workload whose data hold it: what `dataset` and a step change counts in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from tests.rank.tiny import Tiny, TinySettings
from train_core.datasets.protocols import Dataset, Split, Stream


class Bound(Tiny):
    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.scales: dict[str, float] = {}
        self.done = 0

    def dataset(self, split: Split) -> Dataset | Stream:
        self.scales[split] = 1.5
        return super().dataset(split)

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        self.done = step

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.done = state["done"]

    def collate(self, samples: Sequence[Any]) -> Any:
        columns = super().collate(samples)
        columns["x"] = columns["x"] * (self.scales["train"] + self.done / 100)
        return columns
