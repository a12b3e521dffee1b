"""Digits whose ranks stand still at a stage that the environment names, so that it can be struck.

`EVERTRAIN_TEST_HOLD` is `<stage>@<rank>`; a stage is held once, at its first time, until
somebody creates `go-on` in the folder `EVERTRAIN_TEST_NOTES`. There each rank leaves its pid, and
the one that is held says so. Who scores is no rank, and is held as `inference@0`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from train_core import Batch
from train_core.storage.manifest import CheckpointManifest
from train_core.storage.names import CheckpointName
from train_core.storage.run_folder import Checkpoint, RunFolder
from train_core.storage.store import Store
from train_core.workloads.digits import Digits, DigitsSettings

HOLD = "EVERTRAIN_TEST_HOLD"
NOTES = "EVERTRAIN_TEST_NOTES"
FIRST_STEP, MIDDLE_STEP = 1, 31


def reach(stage: str) -> None:
    """Stand still if this is the stage and the rank to do so, and the first time."""
    # The driver, which writes to the storage too, and those who evaluate are no ranks.
    if not dist.is_initialized() or os.environ.get(HOLD) != f"{stage}@{dist.get_rank()}":
        return
    stand_still()


def stand_still() -> None:
    """Until it may go on; only the first who comes, and the first time."""
    notes = Path(os.environ[NOTES])
    try:
        (notes / "first").touch(exist_ok=False)
    except FileExistsError:
        return
    if not dist.is_initialized():
        note_pid(0)
    (notes / "held").touch()
    while not (notes / "go-on").exists():
        time.sleep(0.02)


def note_pid(rank: int) -> None:
    """Leave this process's pid, which somebody may be reading."""
    written = Path(os.environ[NOTES], f"writing-{os.getpid()}")
    written.write_text(str(os.getpid()))
    written.replace(written.with_name(f"pid-{rank}"))


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
            stand_still()
        return super().predictions(outputs)

    def after_step(self, model: nn.Module, step: int) -> None:
        self.trains = True
        if step == FIRST_STEP:
            reach("first step")
        if step == MIDDLE_STEP:
            reach("mid-epoch")

    def state_dict(self) -> dict[str, Any]:
        reach("snapshot")
        return super().state_dict()


_put, _commit = Store.put, RunFolder.commit


def put(store: Store, key: str, data: memoryview) -> str:
    """As the store's own; the first file of this rank is there, and no other of its own."""
    digest = _put(store, key, data)
    reach("upload")
    return digest


def commit(folder: RunFolder, name: CheckpointName, manifest: CheckpointManifest) -> Checkpoint:
    """As the folder's own, with a look before and after."""
    reach("before the manifest")
    committed = _commit(folder, name, manifest)
    reach("after the manifest")
    return committed


if HOLD in os.environ:
    # The ranks make their own stores and folders, far from where a test could hand in others.
    Store.put, RunFolder.commit = put, commit  # type: ignore[method-assign]
