"""A training function as people write it with Lightning by its old name: no word of evertrain."""

from __future__ import annotations

import tests.compat.functions.without_lightning  # noqa: F401 (else Ray's callback is one of it)

# isort: split
from typing import Any

import pytorch_lightning as pl
import torch
from ray import train
from ray.train.lightning import (
    RayDDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MyLightningModule(pl.LightningModule):
    """Tells two classes apart; may fail in an epoch if it is not resumed."""

    def __init__(self, fails_at: int | None) -> None:
        super().__init__()
        self.model = nn.Linear(4, 2)
        self.fails_at = None if train.get_checkpoint() else fails_at

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        features, labels = batch
        loss = nn.functional.cross_entropy(self.model(features), labels)
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == self.fails_at:
            raise RuntimeError("Intentional error to showcase restoration!")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def resume(config: dict[str, Any]) -> None:
    """Reports with Ray's callback, and goes on from the checkpoint that there is."""
    pl.seed_everything(0)
    features = torch.randn(32, 4)
    loader = DataLoader(TensorDataset(features, (features.sum(1) > 0).long()), batch_size=4)
    trainer = pl.Trainer(
        max_epochs=config.get("max_epochs", 4),
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer = prepare_trainer(trainer)
    model = MyLightningModule(config.get("fails_at"))
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as ckpt_dir:
            ckpt_path = f"{ckpt_dir}/{RayTrainReportCallback.CHECKPOINT_NAME}"
            trainer.fit(model, loader, ckpt_path=ckpt_path)
    else:
        trainer.fit(model, loader)
