"""A training function as people write it with FSDP2: no word of evertrain in here."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import ray.train
import torch
import torch.distributed.checkpoint as dcp
from ray.train import Checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class AppState(Stateful):
    """Model, optimizer and epoch, as `torch.distributed.checkpoint` saves and loads them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
        self.model, self.optimizer, self.epoch = model, optimizer, epoch

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optimizer"],
        )
        self.epoch = state_dict["epoch"]


def fsdp2(config: dict[str, Any]) -> None:
    """Every rank saves its shards into the one checkpoint, and loads them from there."""
    torch.manual_seed(0)
    context = ray.train.get_context()
    mesh = init_device_mesh("cpu", (context.get_world_size(),))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        app = AppState(model, optimizer, 0)
        with checkpoint.as_directory() as checkpoint_dir:
            dcp.load({"app": app}, checkpoint_id=checkpoint_dir)
        start_epoch = app.epoch + 1

    generator = torch.Generator().manual_seed(context.get_world_rank())
    features = torch.randn(32, 4, generator=generator)
    for epoch in range(start_epoch, config.get("num_epochs", 3)):
        loss = nn.functional.mse_loss(model(features), features.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            dcp.save({"app": AppState(model, optimizer, epoch)}, checkpoint_id=temp_checkpoint_dir)
            ray.train.report(
                {"loss": loss.item(), "epoch": epoch},
                checkpoint=Checkpoint.from_directory(temp_checkpoint_dir),
            )
        if epoch == config.get("fails_at") and not start_epoch:
            raise RuntimeError("Intentional error to showcase restoration!")
        time.sleep(config.get("pause_s", 0))
