"""Ray Train's way to save, at Ray's defaults, as its guide to checkpoints writes it.

`torch.save` of the model's and the optimizer's state into a temporary folder, and `report`: SYNC,
the default, or ASYNC. One program is one training; its ranks are told what to do.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import ray.train.torch
import torch
from ray import train
from ray.train import Checkpoint, CheckpointUploadMode, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from benchmarks.checkpoint.ranks import serve
from benchmarks.checkpoint.workload import Blocks, BlocksSettings


class Peer:
    """A rank: DDP on a batch in memory."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.steps = 0
        self.model: Any = None
        self.optimizer: torch.optim.Optimizer
        self.inputs: torch.Tensor

    def setup(self, state_mb: float) -> None:
        """A new model and optimizer."""
        workload = Blocks(BlocksSettings(state_mb=state_mb))
        self.model = None
        self.model = ray.train.torch.prepare_model(workload.model())
        self.optimizer = workload.optimizer(self.model)
        self.inputs = torch.randn(4, workload.width)
        # Of course a first step makes the optimizer's state.
        self.step()

    def turn(self, steps: int, mode: str = "train", every: int = 1) -> Any:
        """As `training.Rank.turn`."""
        blocked = []
        torch.distributed.barrier()
        begin = time.perf_counter()
        for index in range(1, steps + 1):
            self.step()
            if mode == "save" and index % every == 0:
                before = time.perf_counter()
                self.save()
                blocked.append(time.perf_counter() - before)
        return {"blocked": blocked, "seconds": time.perf_counter() - begin}

    def pin(self, core: int) -> None:
        """Compute on one core only; the threads that this one has started already may roam."""
        os.sched_setaffinity(0, {core})

    def release(self, cores: list[int]) -> None:
        """Compute on these cores."""
        os.sched_setaffinity(0, cores)

    def step(self) -> None:
        """One optimizer step."""
        loss = torch.nn.functional.mse_loss(self.model(self.inputs), 2 * self.inputs)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1

    def save(self) -> None:
        """As the guide writes it."""
        metrics = {"step": self.steps}
        is_first = train.get_context().get_world_rank() == 0
        if self.mode == "async":
            checkpoint = self.store(tempfile.mkdtemp()) if is_first else None
            mode = CheckpointUploadMode.ASYNC
            train.report(metrics, checkpoint=checkpoint, checkpoint_upload_mode=mode)
            return
        with tempfile.TemporaryDirectory() as folder:
            train.report(metrics, checkpoint=self.store(folder) if is_first else None)

    def store(self, folder: str) -> Checkpoint:
        """The state in a local folder."""
        torch.save(self.model.module.state_dict(), os.path.join(folder, "model.pt"))
        torch.save(self.optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))
        torch.save({"step": self.steps}, os.path.join(folder, "extra_state.pt"))
        return Checkpoint.from_directory(folder)


def train_func(task: dict[str, Any]) -> None:
    """A rank of the training, told what to do."""
    peer = Peer(task["mode"])

    def do(command: str, **arguments: Any) -> Any:
        carried_out: Callable[..., Any] = getattr(peer, command)
        return carried_out(**arguments)

    serve(task["port"], train.get_context().get_world_rank(), do)


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    TorchTrainer(
        train_func,
        train_loop_config=told,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=told["storage"], name=told["mode"]),
    ).fit()
