"""Digits whose ranks stand still at a stage that the environment names, so that it can be struck.

Each rank leaves its pid where it stands. Who scores is no rank, and is held as `inference@0`.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from tests.chaos.standing import HOLD, NOTES, PACE, note_pid, note_step, stand_still
from train_core import Batch
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import CheckpointManifest
from train_core.storage.run_folder import Commit
from train_core.storage.run_writer import RunWriter
from train_core.workloads.digits import Digits, DigitsSettings

STAGE_AFTER = {1: "first step", 31: "mid-epoch"}
"""What the stage after a step is called, if it is not `step N`."""


def reach(stage: str) -> None:
    """Stand still if this is the stage and the rank to do so, and the first time."""
    # The driver, which writes to the storage too, and those who evaluate are no ranks.
    if not dist.is_initialized() or os.environ.get(HOLD) != f"{stage}@{dist.get_rank()}":
        return
    stand_still()


class HeldDigits(Digits):
    """What Digits is, with a look at the stage wherever a workload is called."""

    def __init__(self, settings: DigitsSettings) -> None:
        super().__init__(settings)
        self.trains = False

    def model(self) -> nn.Module:
        if NOTES in os.environ and dist.is_initialized():
            note_pid(dist.get_rank())
        reach("set-up")
        return super().model()

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        if self.trains and not model.training:
            reach("validation")
        return super().forward(model, batch)

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        if os.environ.get(HOLD) == "inference@0":
            stand_still(leaves_pid=True)
        return super().predictions(outputs)

    def after_step(self, model: nn.Module, step: int) -> None:
        self.trains = True
        time.sleep(float(os.environ.get(PACE, "0")))
        reach(STAGE_AFTER.get(step, f"step {step}"))
        if NOTES in os.environ and dist.is_initialized() and dist.get_rank() == 0:
            note_step(step)

    def state_dict(self) -> dict[str, Any]:
        reach("snapshot")
        return super().state_dict()


_put, _commit = Store.put, RunWriter.commit


def put(store: Store, key: str, data: memoryview) -> str:
    """As the store's own; the first file of this rank is there, and no other of its own."""
    digest = _put(store, key, data)
    reach("upload")
    return digest


def commit(writer: RunWriter, manifest: CheckpointManifest) -> Commit:
    """As the writer's own, with a look before and after."""
    reach("before the manifest")
    committed = _commit(writer, manifest)
    reach("after the manifest")
    return committed


if HOLD in os.environ:
    # The ranks make their own stores and writers, far from where a test could hand in others.
    Store.put, RunWriter.commit = put, commit  # type: ignore[method-assign]
