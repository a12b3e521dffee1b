"""The digests of all that a training step reads and changes, for `train_core.differences`.

Each rank writes a line of JSON for each step: of the batch and the loss of each of its passes, and
rank 0 of the model and the optimizer after the step.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from train_core.rank.checkpoint.state import model_state, optimizer_state, unsaved_buffers
from train_core.tools.compare import leaves
from train_core.workload import Batch


class DigestWriter:
    """Collects a step's digests, and writes them to a file at its end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[str, str] = {}

    def add_pass(self, shard: int, batch: Batch, loss: Tensor) -> None:
        """Add what a backward pass of the shard was given, and its loss."""
        number = sum(name.startswith(f"loss/{shard}/") for name in self._found)
        place = f"{shard}/{number}"
        for name, tensor in batch.items():
            self._found[f"batch/{place}/{name}"] = _digest(tensor)
        self._found[f"loss/{place}"] = _digest(loss)

    def add_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Add what the step has made of the model and the optimizer."""
        state = {
            "model": model_state(model) | unsaved_buffers(model),
            "optimizer": optimizer_state(model, optimizer),
        }
        self._found |= {name: _digest(value) for name, value in leaves(state)}

    def end_step(self, step: int) -> None:
        """Write the step's line; `step` is how many are done."""
        with self._file.open("a") as file:
            file.write(json.dumps({"step": step, "digests": self._found}) + "\n")
        self._found = {}


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        # Of anything else the text may name a place in memory.
        is_plain = isinstance(value, (str, int, float, complex, bytes, type(None)))
        return repr(value) if is_plain else type(value).__name__
    flat = value.detach().cpu().to_dense().contiguous().reshape(-1)
    content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    what = f"{value.dtype} {tuple(value.shape)} "
    return what + hashlib.blake2b(content, digest_size=8).hexdigest()
