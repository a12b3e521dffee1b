"""evertrain's loop on ResNet-18 and MNIST, in a process of its own, told when to train.

It validates and saves nothing, as its peers do not; all else of the loop is there: the metrics of
each step, the requests to stop, the watchdog.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.gpu.bench import serve_contender, synchronize
from train_core.config import TrainConfig
from train_core.policy.checkpoints.save_schedule import SaveRules
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.run_folder import RunFolder

EPOCHS = 100
"""More than it trains."""


class Images:
    """The trainer, step by step."""

    def __init__(
        self, storage: str, idx_folder: str, device: str, batch_size: int, options: dict[str, Any]
    ) -> None:
        self.device = torch.device(device)
        uses_gpu = self.device.type == "cuda"
        self.config = TrainConfig(
            workload="train_core.workloads.mnist:MnistResNet18",
            settings={"data": idx_folder},
            epochs=EPOCHS,
            batch_size=batch_size,
            # As all loops here: the last, smaller batch of an epoch would be compiled anew.
            drop_last=True,
            gpus_per_worker=int(uses_gpu),
            **options,
        )
        group = Group.current(uses_gpu=uses_gpu)
        self.trainer = Trainer(RunFolder(storage, "run"), with_monitor(self.config), 1, group)
        self.trainer.checkpointer.rules = SaveRules(checkpoint_every_epochs=0)
        self.trainer.stop_requests.start()
        self.trainer.restore()

    def turn(self, steps: int, warm_up: int) -> float:
        """Train on; images/s of the steps after the warm-up."""
        begin = 0.0
        for number in range(warm_up + steps):
            if number == warm_up:
                synchronize(self.device)
                begin = time.perf_counter()
            self.step()
        synchronize(self.device)
        seconds = time.perf_counter() - begin
        # Others have their turn now, and it does not hang.
        self.trainer.watchdog.rest()
        return steps * self.config.batch_size / seconds

    def step(self) -> None:
        """A step as the loop takes it; an epoch ends without its validation."""
        trainer = self.trainer
        trainer.step()
        if trainer.progress.awaits_validation(trainer.loader.plan):
            trainer.agreed.settle()
            trainer.progress.end_epoch()
        trainer.stop_if_due()
        trainer.save_if_due()

    def close(self) -> None:
        """End all threads and processes."""
        self.trainer.close()


if __name__ == "__main__":
    serve_contender(Images)
