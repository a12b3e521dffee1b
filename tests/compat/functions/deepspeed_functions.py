"""A training function as people write it with DeepSpeed: no word of evertrain in here."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import deepspeed
import deepspeed.ops
import ray.train
import torch
from ray.train import Checkpoint
from torch import nn

# Else DeepSpeed compiles collectives of its own on CPUs when it starts.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
CONFIG = {
    # `torch_adam`: DeepSpeed's own Adam is compiled when it is first used.
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "train_micro_batch_size_per_gpu": 8,
    # Parameters, gradients and the optimizer's state are sharded, down to the smallest.
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}


def zero3(config: dict[str, Any]) -> None:
    """Every rank saves its shards into the one checkpoint, and loads them from there."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model, _, _, _ = deepspeed.initialize(
        model=network, model_parameters=network.parameters(), config=CONFIG
    )
    start_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            _, state = model.load_checkpoint(checkpoint_dir)
        start_epoch = state["epoch"] + 1

    rank = ray.train.get_context().get_world_rank()
    generator = torch.Generator().manual_seed(rank)
    features = torch.randn(32, 4, generator=generator)
    for epoch in range(start_epoch, config.get("num_epochs", 4)):
        for batch in features.split(8):
            loss = nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
            model.backward(loss)
            model.step()

        with tempfile.TemporaryDirectory() as tempdir:
            # Each worker saves its own checkpoint shard
            model.save_checkpoint(tempdir, client_state={"epoch": epoch})

            # Report checkpoint shards from each worker in parallel
            ray.train.report(
                {"loss": loss.item(), "epoch": epoch},
                checkpoint=Checkpoint.from_directory(tempdir),
            )
        if epoch == config.get("fails_at") and not start_epoch:
            raise RuntimeError("Intentional error to showcase restoration!")
        time.sleep(config.get("pause_s", 0))
