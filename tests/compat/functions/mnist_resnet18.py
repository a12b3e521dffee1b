"""Ray's tutorial of ResNet-18 on MNIST, on the IDX files in the folder EVERTRAIN_DATA."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.nn import CrossEntropyLoss
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from train_core.workloads.idx import read_idx
from train_core.workloads.resnet import ResNet18


def build_resnet18() -> torch.nn.Module:
    """A ResNet-18 of ten classes that takes one channel."""
    return ResNet18(in_channels=1, num_classes=10)  # Was torchvision's, of the same parameters.


def load_model_ray_train() -> torch.nn.Module:
    """The model on its device, in DDP if there are several workers."""
    return ray.train.torch.prepare_model(build_resnet18())


def build_data_loader_ray_train(batch_size: int, num_images: int) -> DataLoader[Any]:
    """A worker's shard of the first images, normalised as in the tutorial."""
    # Was torchvision's `MNIST(..., download=True)`.
    folder = os.path.join(os.environ["EVERTRAIN_DATA"], "mnist")
    images = torch.tensor(read_idx(folder, "train-images-idx3-ubyte")[:num_images])
    labels = torch.tensor(read_idx(folder, "train-labels-idx1-ubyte")[:num_images])
    train_data = TensorDataset((images[:, None] / 255 - 0.5) / 0.5, labels.long())
    train_loader = DataLoader(train_data, batch_size=batch_size, shuffle=True, drop_last=True)
    return ray.train.torch.prepare_data_loader(train_loader)


def print_metrics_ray_train(loss: torch.Tensor, epoch: int) -> dict[str, float]:
    """The epoch's metrics, printed by rank 0."""
    metrics = {"loss": loss.item(), "epoch": epoch}
    if ray.train.get_context().get_world_rank() == 0:
        print(metrics)  # noqa: T201
    return metrics


def save_from_every_rank(model: torch.nn.Module, metrics: dict[str, float]) -> None:
    """Part 11 of the tutorial: each rank saves the same model under the same name."""
    # Create a temporary directory to stage checkpoint files
    with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
        # Save the model weights.
        # Note: under DDP the model is wrapped in DistributedDataParallel,
        # so we unwrap it with `.module` before calling state_dict().
        torch.save(
            model.module.state_dict(),  # note the `.module` to unwrap the DistributedDataParallel
            os.path.join(temp_checkpoint_dir, "model.pt"),
        )

        # Report metrics and attach a checkpoint to Ray Train.
        # → metrics are logged centrally
        # → checkpoint allows resuming training or running inference later
        ray.train.report(
            metrics,
            checkpoint=ray.train.Checkpoint.from_directory(temp_checkpoint_dir),
        )


def save_checkpoint_and_metrics_ray_train(
    model: torch.nn.Module, metrics: dict[str, float]
) -> None:
    """Part 12 of the tutorial: only rank 0 saves."""
    with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
        checkpoint = None

        # Only the rank-0 worker writes the checkpoint file
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(
                model.module.state_dict(),  # unwrap DDP before saving
                os.path.join(temp_checkpoint_dir, "model.pt"),
            )
            checkpoint = ray.train.Checkpoint.from_directory(temp_checkpoint_dir)

        # All workers still call ray.train.report()
        # → keeps training loop synchronized
        # → metrics are logged from each worker
        # → only rank-0 attaches a checkpoint
        ray.train.report(
            metrics,
            checkpoint=checkpoint,
        )


def train_loop_ray_train(config: dict[str, Any]) -> None:
    """The tutorial's loop for several workers; `every_rank` saves as in its part 11, not 12."""
    torch.manual_seed(0)
    save = (
        save_from_every_rank if config.get("every_rank") else save_checkpoint_and_metrics_ray_train
    )
    criterion = CrossEntropyLoss()
    model = load_model_ray_train()
    optimizer = Adam(model.parameters(), lr=1e-5)
    world_size = ray.train.get_context().get_world_size()
    data_loader = build_data_loader_ray_train(
        batch_size=config.get("global_batch_size", 64) // world_size,
        num_images=config.get("num_images", 256),
    )

    for epoch in range(config.get("num_epochs", 2)):
        # Ensure data is on the correct device and shuffled differently in each epoch
        data_loader.sampler.set_epoch(epoch)

        for images, labels in data_loader:
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        metrics = print_metrics_ray_train(loss, epoch)
        save(model, metrics)


def train_loop_with_checkpoint_loading(config: dict[str, Any]) -> None:
    """The loop that goes on from its checkpoint, with one worker or several."""
    torch.manual_seed(0)
    criterion = CrossEntropyLoss()
    model = load_model_ray_train()
    module = model.module if hasattr(model, "module") else model
    optimizer = Adam(model.parameters(), lr=1e-3)
    context = ray.train.get_context()
    data_loader = build_data_loader_ray_train(
        batch_size=config.get("global_batch_size", 64) // context.get_world_size(),
        num_images=config.get("num_images", 256),
    )

    start_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            module.load_state_dict(torch.load(os.path.join(checkpoint_dir, "model.pt")))
            optimizer.load_state_dict(torch.load(os.path.join(checkpoint_dir, "optimizer.pt")))
            extra_state = torch.load(os.path.join(checkpoint_dir, "extra_state.pt"))
        start_epoch = extra_state["epoch"] + 1

    for epoch in range(start_epoch, config.get("num_epochs", 3)):
        if context.get_world_size() > 1:
            data_loader.sampler.set_epoch(epoch)

        for images, labels in data_loader:
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        metrics = print_metrics_ray_train(loss, epoch)
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            if context.get_world_rank() == 0:
                torch.save(module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
                torch.save(
                    optimizer.state_dict(), os.path.join(temp_checkpoint_dir, "optimizer.pt")
                )
                torch.save({"epoch": epoch}, os.path.join(temp_checkpoint_dir, "extra_state.pt"))
                checkpoint = ray.train.Checkpoint.from_directory(temp_checkpoint_dir)
            ray.train.report(metrics, checkpoint=checkpoint)
        if epoch == config.get("fails_at") and not start_epoch:
            raise RuntimeError("Intentional error to showcase restoration!")
        time.sleep(config.get("pause_s", 0))


def run_config(storage_path: str = "/mnt/cluster_storage/training/") -> RunConfig:
    """Part 13 of the tutorial: persistent storage and the run's name."""
    return RunConfig(
        storage_path=storage_path,  # where to store checkpoints/logs
        name="distributed-mnist-resnet18",  # identifier for this run
    )


def trainer() -> TorchTrainer:
    """The loop that resumes, on two workers, and may fail once."""
    return TorchTrainer(
        train_loop_with_checkpoint_loading,
        train_loop_config={"num_epochs": 3, "global_batch_size": 64},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1)),
    )
