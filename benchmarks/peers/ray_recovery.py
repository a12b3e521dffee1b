"""Stock Ray Train at its defaults, which trains until it is ended and restarts what was killed.

It saves as Ray's guide to checkpoints writes it, and restores as its guide to fault tolerance
does, as often as it takes (`max_failures=-1`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from benchmarks.checkpoint.workload import Blocks, BlocksSettings
from benchmarks.recovery.notes import NUM_RANKS
from benchmarks.recovery.workload import note_step

SAVE_EVERY_STEPS = 50
"""About a second."""


def train_func(task: dict[str, Any]) -> None:
    """Train on a batch in memory, without end."""
    workload = Blocks(BlocksSettings(state_mb=task["state_mb"]))
    model = ray.train.torch.prepare_model(workload.model())
    optimizer = workload.optimizer(model)
    inputs = torch.randn(task["batch_size"] // NUM_RANKS, workload.width)
    rank, step = train.get_context().get_world_rank(), 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            model.module.load_state_dict(torch.load(os.path.join(folder, "model.pt")))
            optimizer.load_state_dict(torch.load(os.path.join(folder, "optimizer.pt")))
            step = torch.load(os.path.join(folder, "extra_state.pt"))["step"]
    while True:
        loss = torch.nn.functional.mse_loss(model(inputs), 2 * inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        note_step(Path(task["notes"]), rank, step)
        if step % SAVE_EVERY_STEPS == 0:
            save(model, optimizer, step, is_first=rank == 0)


def save(model: Any, optimizer: torch.optim.Optimizer, step: int, *, is_first: bool) -> None:
    """The state in a temporary folder, reported."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if is_first:
            torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
            torch.save(optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))
            torch.save({"step": step}, os.path.join(folder, "extra_state.pt"))
            checkpoint = Checkpoint.from_directory(folder)
        train.report({"step": step}, checkpoint=checkpoint)


def main() -> None:
    """The folder, the folder of notes, the state's MB and the batch size are the arguments."""
    folder, notes = sys.argv[1:3]
    task = {"notes": notes, "state_mb": float(sys.argv[3]), "batch_size": int(sys.argv[4])}
    ray.init(num_cpus=NUM_RANKS)
    TorchTrainer(
        train_func,
        train_loop_config=task,
        scaling_config=ScalingConfig(num_workers=NUM_RANKS),
        run_config=RunConfig(
            storage_path=folder, name="stock", failure_config=FailureConfig(max_failures=-1)
        ),
    ).fit()


if __name__ == "__main__":
    main()
