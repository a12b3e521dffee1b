"""The plain PyTorch samples of Ray's page on checkpoints, as they stand there.

Only `...` is filled in. A comment marks each line that Ray 2.60 would not take as it was.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray.train.torch
import torch
from ray import train
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.optim import Adam


def report_from_rank_0(config: dict[str, Any]) -> None:
    """How saving typically looks: the global rank 0 alone has a checkpoint."""
    metrics = {"loss": 0.5}
    with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
        checkpoint = None

        # Only the global rank 0 worker saves and reports the checkpoint
        if train.get_context().get_world_rank() == 0:
            Path(temp_checkpoint_dir, "model.txt").write_text("a model")

            # Was `from_directory(tmpdir)`: the sample has no such name.
            checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)

        train.report(metrics, checkpoint=checkpoint)


def save(config: dict[str, Any]) -> None:
    """A toy model that is saved every `checkpoint_freq` epochs and never resumed."""
    n = 100
    # create a toy dataset
    # data   : X - dim = (n, 4)
    # target : Y - dim = (n, 1)
    X = torch.Tensor(np.random.normal(0, 1, size=(n, 4)))  # noqa: N806, NPY002
    Y = torch.Tensor(np.random.uniform(0, 1, size=(n, 1)))  # noqa: N806, NPY002
    # toy neural network : 1-layer
    # Wrap the model in DDP
    model = ray.train.torch.prepare_model(nn.Linear(4, 1))
    criterion = nn.MSELoss()

    optimizer = Adam(model.parameters(), lr=3e-4)
    for epoch in range(config["num_epochs"]):
        y = model.forward(X)
        loss = criterion(y, Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        metrics = {"loss": loss.item()}

        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None

            should_checkpoint = epoch % config.get("checkpoint_freq", 1) == 0
            # In standard DDP training, where the model is the same across all ranks,
            # only the global rank 0 worker needs to save and report the checkpoint
            if train.get_context().get_world_rank() == 0 and should_checkpoint:
                torch.save(
                    model.module.state_dict(),  # NOTE: Unwrap the model.
                    os.path.join(temp_checkpoint_dir, "model.pt"),
                )
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)

            train.report(metrics, checkpoint=checkpoint)


def save_trainer() -> TorchTrainer:
    """The trainer of that sample."""
    return TorchTrainer(
        save,
        train_loop_config={"num_epochs": 5},
        scaling_config=ScalingConfig(num_workers=2),
    )


def save_shards(config: dict[str, Any]) -> None:
    """Distributed checkpointing: each rank saves a shard under a name of its own."""
    rank = train.get_context().get_world_rank()
    torch.manual_seed(rank)
    shard = nn.Linear(4, 1)
    metrics = {"rank": rank}

    with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
        rank = train.get_context().get_world_rank()
        torch.save(
            shard.state_dict(),
            os.path.join(temp_checkpoint_dir, f"model-rank={rank}.pt"),
        )
        checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)

        train.report(metrics, checkpoint=checkpoint)


def save_shards_trainer(storage_path: str = "s3://bucket/") -> TorchTrainer:
    """The trainer of that sample; its storage is another's unless one is given."""
    return TorchTrainer(
        save_shards,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=storage_path),
    )


def save_and_restore(config: dict[str, Any]) -> None:
    """The toy model again, with all that it needs to go on after an intentional error."""
    n = 100
    # create a toy dataset
    # data   : X - dim = (n, 4)
    # target : Y - dim = (n, 1)
    X = torch.Tensor(np.random.normal(0, 1, size=(n, 4)))  # noqa: N806, NPY002
    Y = torch.Tensor(np.random.uniform(0, 1, size=(n, 1)))  # noqa: N806, NPY002
    # toy neural network : 1-layer
    model = nn.Linear(4, 1)
    optimizer = Adam(model.parameters(), lr=3e-4)
    criterion = nn.MSELoss()

    # Wrap the model in DDP and move it to GPU.
    model = ray.train.torch.prepare_model(model)

    # ====== Resume training state from the checkpoint. ======
    start_epoch = 0
    # Was `get_checkpoint()` alone: what `resume_from_checkpoint` gave is now in the config.
    checkpoint = train.get_checkpoint() or config.get("resume_from_checkpoint")
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            model_state_dict = torch.load(
                os.path.join(checkpoint_dir, "model.pt"),
                # map_location=...,  # Load onto a different device if needed.
            )
            model.module.load_state_dict(model_state_dict)
            optimizer.load_state_dict(torch.load(os.path.join(checkpoint_dir, "optimizer.pt")))
            start_epoch = torch.load(os.path.join(checkpoint_dir, "extra_state.pt"))["epoch"] + 1
    # ========================================================

    for epoch in range(start_epoch, config["num_epochs"]):
        y = model.forward(X)
        loss = criterion(y, Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        metrics = {"loss": loss.item()}

        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None

            should_checkpoint = epoch % config.get("checkpoint_freq", 1) == 0
            # In standard DDP training, where the model is the same across all ranks,
            # only the global rank 0 worker needs to save and report the checkpoint
            if train.get_context().get_world_rank() == 0 and should_checkpoint:
                # === Make sure to save all state needed for resuming training ===
                torch.save(
                    model.module.state_dict(),  # NOTE: Unwrap the model.
                    os.path.join(temp_checkpoint_dir, "model.pt"),
                )
                torch.save(
                    optimizer.state_dict(),
                    os.path.join(temp_checkpoint_dir, "optimizer.pt"),
                )
                torch.save(
                    {"epoch": epoch},
                    os.path.join(temp_checkpoint_dir, "extra_state.pt"),
                )
                # ================================================================
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)

            train.report(metrics, checkpoint=checkpoint)

        if epoch == 1:
            raise RuntimeError("Intentional error to showcase restoration!")


def save_and_restore_trainer() -> TorchTrainer:
    """The trainer of that sample: it may fail once."""
    return TorchTrainer(
        save_and_restore,
        train_loop_config={"num_epochs": 5},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=train.RunConfig(failure_config=train.FailureConfig(max_failures=1)),
    )


def seeded_trainer(checkpoint: Checkpoint) -> TorchTrainer:
    """Seeds a training run with a checkpoint of another."""
    return TorchTrainer(
        save_and_restore,
        # Was the argument `resume_from_checkpoint=checkpoint`, which Train V2 refuses.
        train_loop_config={"num_epochs": 5, "resume_from_checkpoint": checkpoint},
        scaling_config=ScalingConfig(num_workers=2),
    )


def keep_most_recent() -> RunConfig:
    """Example 1: only keep the 2 *most recent* checkpoints and delete the others."""
    return RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=2))


def keep_best(storage_path: str = "s3://remote-bucket/location") -> RunConfig:
    """Example 2: only keep the 2 *best* checkpoints and delete the others."""
    return RunConfig(
        checkpoint_config=CheckpointConfig(
            num_to_keep=2,
            # *Best* checkpoints are determined by these params:
            checkpoint_score_attribute="mean_accuracy",
            checkpoint_score_order="max",
        ),
        # This will store checkpoints on S3.
        storage_path=storage_path,
    )


def inspect_checkpoint(folder: str = "/tmp/test-checkpoint") -> str:
    """Looks into a checkpoint in both ways, and gives where `to_directory` put it."""
    # For demonstration, create a locally available directory with a `model.pt` file.
    example_checkpoint_dir = Path(folder)
    example_checkpoint_dir.mkdir()
    example_checkpoint_dir.joinpath("model.pt").touch()

    # Create the checkpoint, which is a reference to the directory.
    checkpoint = Checkpoint.from_directory(example_checkpoint_dir)

    # Inspect the checkpoint's contents with either `as_directory` or `to_directory`:
    with checkpoint.as_directory() as checkpoint_dir:
        assert Path(checkpoint_dir).joinpath("model.pt").exists()

    checkpoint_dir = checkpoint.to_directory()
    assert Path(checkpoint_dir).joinpath("model.pt").exists()
    return checkpoint_dir
