"""A workload whose module makes its worker's thread round the smallest numbers to zero."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.rank.tiny import Mortal
from train_core import Batch
from train_core.datasets.protocols import Dataset, Split, Stream

# Not in the process of the tests. It holds for the thread that imports the module.
if os.environ.get("EVERTRAIN_INSIDE") == "worker":
    torch.set_flush_denormal(True)


class Flushing(Mortal):
    """Learns from what is left of tiny numbers; rank 1 dies when a third process has the data."""

    def dataset(self, split: Split) -> Dataset | Stream:
        Path(self.settings.scratch, f"loaded-{os.getpid()}").touch()
        return super().dataset(split)

    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        return super().forward(model, batch) + 1e38 * (1e-40 * batch["inputs"][:, :3])

    def after_step(self, model: torch.nn.Module, step: int) -> None:
        scratch = Path(self.settings.scratch)
        is_mortal = step == 4 and dist.get_rank() == 1 and not Path(scratch, "died").exists()
        while is_mortal and len(list(scratch.glob("loaded-*"))) < 3:
            time.sleep(0.05)
        super().after_step(model, step)
