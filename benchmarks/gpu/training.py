"""A real training in this process, in windows: with a checkpoint at the beginning, or without."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint.training import TimedWriter
from benchmarks.gpu.bench import synchronize
from train_core.config import TrainConfig
from train_core.policy.checkpoints.save_schedule import SaveRules
from train_core.rank.checkpoint.packing import pack
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.run_folder import RunFolder

ALIGNED_BYTES = 64


@dataclass(frozen=True)
class Window:
    """How long some steps took."""

    seconds: float
    """From when the device was idle until it is again, the checkpoint included."""
    blocked_s: float = 0
    """Of them, those in the call that saves."""


class Training:
    """evertrain's trainer, step by step, as its own loop drives it."""

    def __init__(
        self, storage: Path, settings: dict[str, Any], batch_size: int, device: torch.device
    ) -> None:
        uses_gpu = device.type == "cuda"
        config = TrainConfig(
            workload="benchmarks.gpu.workload:RandomText",
            settings=settings,
            batch_size=batch_size,
            precision="bf16",
            # Faster steps, beside which a checkpoint weighs more.
            deterministic=False,
            gpus_per_worker=int(uses_gpu),
            monitor="validation/loss",
            monitor_order="min",
        )
        self.device = device
        folder = RunFolder(str(storage), "run")
        self.writer = TimedWriter(folder, 1)
        self.trainer = Trainer(folder, with_monitor(config), 1, Group.current(uses_gpu=uses_gpu))
        self.checkpointer = self.trainer.checkpointer
        self.checkpointer._thread.run_writer = self.writer  # noqa: SLF001 (the trainer makes its own)
        self._save_every(0)
        self.trainer.stop_requests.start()
        self.trainer.restore()
        self._buffers: list[torch.Tensor] = []
        self._taken_at = 0.0

    @property
    def model(self) -> torch.nn.Module:
        """What is trained."""
        return self.trainer.learner.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What trains it."""
        return self.trainer.learner.optimizer

    @property
    def step(self) -> int:
        """Steps done."""
        return self.trainer.progress.step

    def window(self, steps: int, save: Callable[[], object] | None = None) -> Window:
        """Train so many steps; `save` is called before the first of them."""
        blocked_s = 0.0
        synchronize(self.device)
        begin = time.perf_counter()
        if save is not None:
            save()
            blocked_s = time.perf_counter() - begin
        for _ in range(steps):
            self.trainer.step()
            self.trainer.stop_if_due()
            self.trainer.save_if_due()
        synchronize(self.device)
        seconds = time.perf_counter() - begin
        # Others have their turn now, and it does not hang.
        self.trainer.watchdog.rest()
        return Window(seconds, blocked_s)

    def save(self) -> None:
        """Take a checkpoint as the loop does, now."""
        self._save_every(1)
        before = self.trainer.progress.elapsed_s
        self.trainer.save_if_due()
        # The loop notes the time of training with each.
        assert self.trainer.progress.elapsed_s != before, "no checkpoint was taken"
        self._taken_at = time.perf_counter()
        self._save_every(0)

    def wait(self) -> float:
        """Wait for the checkpoint's commit; its seconds after the loop went on."""
        self.checkpointer.wait()
        return self.writer.committed[max(self.writer.committed)] - self._taken_at

    def live(self) -> list[torch.Tensor]:
        """All tensors of the state."""
        return list(pack(self.trainer.state.capture())[1].values())

    def copy_s(self) -> float:
        """Seconds of a bare copy of the state into main memory that exists, pinned with a GPU."""
        live = self.live()
        if not self._buffers:
            self._buffers = _buffers_for(live, pinned=self.device.type == "cuda")
        synchronize(self.device)
        begin = time.perf_counter()
        with torch.no_grad():
            for buffer, tensor in zip(self._buffers, live, strict=True):
                buffer.copy_(tensor, non_blocking=True)
        synchronize(self.device)
        return time.perf_counter() - begin

    def close(self) -> None:
        """End the training's threads and give the memory back."""
        self._buffers = []
        self.trainer.close()

    def _save_every(self, steps: int) -> None:
        self.checkpointer.rules = SaveRules(
            checkpoint_every_epochs=0, checkpoint_every_steps=steps, checkpoint_backpressure="wait"
        )


def _buffers_for(live: list[torch.Tensor], *, pinned: bool) -> list[torch.Tensor]:
    """Memory for each tensor, in one piece: torch rounds what it pins up to a power of two."""
    starts, end = [], 0
    for tensor in live:
        starts.append(end)
        end += -(-tensor.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
    memory = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
    return [
        memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, live, strict=True)
    ]
