"""Stock Ray Train at its defaults: prints the seconds from `fit()` to the end of the first step."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from benchmarks.checkpoint.workload import Blocks, BlocksSettings


def train_func(task: dict[str, Any]) -> None:
    """One step on a batch in memory."""
    workload = Blocks(BlocksSettings(state_mb=task["state_mb"]))
    model = ray.train.torch.prepare_model(workload.model())
    optimizer = workload.optimizer(model)
    inputs = torch.randn(task["batch_size"] // 2, workload.width)
    loss = torch.nn.functional.mse_loss(model(inputs), 2 * inputs)
    loss.backward()
    optimizer.step()
    if train.get_context().get_world_rank() == 0:
        Path(task["first_step"]).write_text(str(time.time()))


def main() -> None:
    """The folder, the state's MB and the batch size are the arguments."""
    folder, state_mb, batch_size = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    first_step = folder / "first-step"
    task = {"state_mb": state_mb, "batch_size": batch_size, "first_step": str(first_step)}
    ray.init(num_cpus=2)
    trainer = TorchTrainer(
        train_func,
        train_loop_config=task,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder), name="stock"),
    )
    begin = time.time()
    trainer.fit()
    print(float(first_step.read_text()) - begin)


if __name__ == "__main__":
    main()
