"""A model of any size: residual blocks of matrices, as transformers have them, with AdamW."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import MeanSquaredError, Metric

from train_core import ArrayDataset, Batch, Columns, SampleRandom, Settings, Split, Workload

NUM_BLOCKS = 10
NUM_SAMPLES = 2**20
_DISTINCT = 256


class BlocksSettings(Settings):
    """How large the state is, and how much of the model is a frozen backbone."""

    state_mb: float = 14
    """Parameters and Adam's two moments of each, in MB of 10^6 bytes, if nothing is frozen."""
    frozen_blocks: int = 0


class Block(nn.Module):
    """A transformer's feed-forward part, beside its shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, width)."""
        hidden = nn.functional.gelu(self.up(self.norm(features)))
        output: Tensor = features + self.down(hidden)
        return output


class ManySamples:
    """Few distinct samples under many indices, so that no epoch ends and little memory is used."""

    def __init__(self, width: int) -> None:
        rng = np.random.default_rng(0)
        self.rows = rng.normal(0, 1, (_DISTINCT, width)).astype(np.float32)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Columns:
        return {"x": self.rows[index % _DISTINCT]}

    def __getitems__(self, indices: Sequence[int]) -> Columns:
        return {"x": self.rows[np.asarray(indices) % _DISTINCT]}


class Blocks(Workload[BlocksSettings]):
    """Learns to double its inputs."""

    Settings = BlocksSettings
    target_columns = ()

    @property
    def width(self) -> int:
        """Features of the model; a block has about 8 x width x width parameters."""
        parameters = self.settings.state_mb * 1e6 / (3 * 4)
        return max(8, round((parameters / (8 * NUM_BLOCKS)) ** 0.5))

    def model(self) -> nn.Module:
        """The blocks, the first of them frozen."""
        blocks = [Block(self.width) for _ in range(NUM_BLOCKS)]
        for block in blocks[: self.settings.frozen_blocks]:
            block.requires_grad_(requires_grad=False)
        return nn.Sequential(*blocks)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW over what is trained."""
        trained = [p for p in model.parameters() if p.requires_grad]
        return torch.optim.AdamW(trained, lr=1e-5, fused=True)

    def dataset(self, split: Split) -> Any:
        """Random numbers."""
        many = ManySamples(self.width)
        return many if split == "train" else ArrayDataset(x=many.rows[:8])

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """The numbers as they are."""
        inputs = torch.from_numpy(columns["x"])
        return {"inputs": inputs, "targets": 2 * inputs}

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The mean squared error."""
        return nn.functional.mse_loss(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        """The mean squared error, once more."""
        return {"mse": MeanSquaredError()}

    def predictions(self, outputs: Any) -> Mapping[str, Tensor]:
        """The first number."""
        return {"prediction": outputs[:, 0]}
