"""Training functions as people write them with Accelerate: no word of evertrain in here."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import ray.train
import safetensors.torch
import torch
from accelerate import Accelerator
from ray.train import Checkpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def _data_loader() -> DataLoader[Any]:
    features = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(features, features.sum(1, keepdim=True)), batch_size=4)


def save_model(config: dict[str, Any]) -> None:
    """Saves with `accelerator.save_model`, whose safetensors it can go on from."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(4, 1)
    start_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            safetensors.torch.load_model(model, os.path.join(checkpoint_dir, "model.safetensors"))
            extra = torch.load(os.path.join(checkpoint_dir, "extra_state.pt"))
            start_epoch = extra["epoch"] + 1
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    model, optimizer, data_loader = accelerator.prepare(model, optimizer, _data_loader())

    for epoch in range(start_epoch, config.get("num_epochs", 3)):
        for features, targets in data_loader:
            loss = nn.functional.mse_loss(model(features), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        mean_loss = accelerator.gather(loss.detach().reshape(1)).mean().item()

        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            if accelerator.is_main_process:
                accelerator.save_model(model, temp_checkpoint_dir)
                torch.save({"epoch": epoch}, os.path.join(temp_checkpoint_dir, "extra_state.pt"))
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
            ray.train.report({"loss": mean_loss, "epoch": epoch}, checkpoint=checkpoint)
        if epoch == config.get("fails_at") and not start_epoch:
            raise RuntimeError("Intentional error to showcase restoration!")
        time.sleep(config.get("pause_s", 0))


def unwrap_model(config: dict[str, Any]) -> None:
    """Saves model and optimizer unwrapped with `torch.save`, and goes on from both."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer, data_loader = accelerator.prepare(model, optimizer, _data_loader())
    start_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            state = torch.load(os.path.join(checkpoint_dir, "state.pt"))
        accelerator.unwrap_model(model).load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start_epoch = state["epoch"] + 1

    for epoch in range(start_epoch, config.get("num_epochs", 3)):
        for features, targets in data_loader:
            loss = nn.functional.mse_loss(model(features), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()

        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            if accelerator.is_main_process:
                torch.save(
                    {
                        "model": accelerator.unwrap_model(model).state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "epoch": epoch,
                    },
                    os.path.join(temp_checkpoint_dir, "state.pt"),
                )
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
            ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)
        if epoch == config.get("fails_at") and not start_epoch:
            raise RuntimeError("Intentional error to showcase restoration!")
        time.sleep(config.get("pause_s", 0))
