"""Training functions as people write them with Lightning: no word of evertrain in here."""

from __future__ import annotations

import os
import sys
import time
from tempfile import TemporaryDirectory
from typing import Any

# Was `pytorch_lightning` alone: Ray's callback is one of `lightning`, unless there is none.
if "tests.compat.functions.pytorch_lightning_functions" in sys.modules:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

import ray
import ray.train
import torch
from ray import train
from ray.train import Checkpoint, Result
from ray.train.lightning import (
    RayDDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MyLightningModule(pl.LightningModule):
    """Tells two classes apart; may pause in each epoch, and fail in one if it is not resumed."""

    def __init__(self, pause_s: float = 0, fails_at: int | None = None) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        # Ray's `get_checkpoint` gives later what this attempt reported itself.
        self.pause_s, self.fails_at = pause_s, None if train.get_checkpoint() else fails_at
        self.accuracies: list[torch.Tensor] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        features, labels = batch
        loss = nn.functional.cross_entropy(self.model(features), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        features, labels = batch
        self.accuracies.append((self.model(features).argmax(1) == labels).float().mean())

    def on_validation_epoch_end(self) -> None:
        mean_acc = torch.stack(self.accuracies).mean()
        self.log("mean_accuracy", mean_acc, sync_dist=True)
        self.accuracies.clear()

    def on_train_epoch_start(self) -> None:
        time.sleep(self.pause_s)
        if self.current_epoch == self.fails_at:
            raise RuntimeError("Intentional error to showcase restoration!")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class MyLightningDataModule(pl.LightningDataModule):
    """Points of the plane's two sides; Lightning shards them by itself."""

    def setup(self, stage: str) -> None:
        features = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
        labels = (features.sum(1) > 0).long()
        self.train = TensorDataset(features[:32], labels[:32])
        self.validation = TensorDataset(features[32:], labels[32:])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=4, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.validation, batch_size=4)


def trainer_with(callback: pl.Callback, max_epochs: int) -> pl.Trainer:
    """Lightning's trainer on Ray's workers."""
    trainer = pl.Trainer(
        max_epochs=max_epochs,
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return prepare_trainer(trainer)


def report_callback() -> None:
    """Reports with Ray's callback at each epoch's end; takes no configuration."""
    pl.seed_everything(0)
    model = MyLightningModule()
    datamodule = MyLightningDataModule()
    trainer_with(RayTrainReportCallback(), max_epochs=3).fit(model, datamodule=datamodule)


def report_callback_trainer() -> TorchTrainer:
    """The trainer of that sample: it keeps the two checkpoints of the best accuracy."""
    return TorchTrainer(
        report_callback,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            checkpoint_config=train.CheckpointConfig(
                num_to_keep=2,
                checkpoint_score_attribute="mean_accuracy",
                checkpoint_score_order="max",
            ),
        ),
    )


class CustomRayTrainReportCallback(pl.Callback):
    """Reports metrics at each epoch's end, and a checkpoint every 3 epochs."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        should_checkpoint = trainer.current_epoch % 3 == 0

        with TemporaryDirectory() as tmpdir:
            # Fetch metrics
            metrics = trainer.callback_metrics
            metrics = {k: v.item() for k, v in metrics.items()}

            # Add customized metrics
            metrics["epoch"] = trainer.current_epoch
            metrics["custom_metric"] = 123

            checkpoint = None
            # Was `... == 0`, and then `global_rank == 0`: true on every rank but the first.
            global_rank = ray.train.get_context().get_world_rank()
            if should_checkpoint:
                # Save model checkpoint file to tmpdir
                ckpt_path = os.path.join(tmpdir, "ckpt.pt")
                # Was called by one rank: Lightning waits in it for all of them.
                trainer.save_checkpoint(ckpt_path, weights_only=False)

            if global_rank == 0 and should_checkpoint:
                checkpoint = Checkpoint.from_directory(tmpdir)

            # Report to train session
            ray.train.report(metrics=metrics, checkpoint=checkpoint)


def custom_callback(config: dict[str, Any]) -> None:
    """Reports with that callback."""
    pl.seed_everything(0)
    trainer = trainer_with(CustomRayTrainReportCallback(), config.get("max_epochs", 5))
    trainer.fit(
        MyLightningModule(pause_s=config.get("pause_s", 0)), datamodule=MyLightningDataModule()
    )


def resume(config: dict[str, Any]) -> None:
    """Reports with Ray's callback, and goes on from the checkpoint that there is."""
    pl.seed_everything(0)
    model = MyLightningModule(config.get("pause_s", 0), config.get("fails_at"))
    datamodule = MyLightningDataModule()
    trainer = trainer_with(RayTrainReportCallback(), config.get("max_epochs", 4))

    # Was `get_checkpoint()` alone: what `resume_from_checkpoint` gave is now in the config.
    checkpoint = train.get_checkpoint() or config.get("resume_from_checkpoint")
    if checkpoint:
        with checkpoint.as_directory() as ckpt_dir:
            ckpt_path = os.path.join(ckpt_dir, RayTrainReportCallback.CHECKPOINT_NAME)
            trainer.fit(model, datamodule=datamodule, ckpt_path=ckpt_path)
    else:
        trainer.fit(model, datamodule=datamodule)


def resume_trainer() -> TorchTrainer:
    """The trainer of that sample: it keeps the two newest checkpoints."""
    return TorchTrainer(
        resume,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
        ),
    )


def seeded_trainer(ckpt_dir: str = "s3://bucket/ckpt_dir") -> TorchTrainer:
    """Resumes training from a Lightning checkpoint at `ckpt_dir`/checkpoint.ckpt."""
    # Build a Ray Train Checkpoint
    checkpoint = Checkpoint(ckpt_dir)

    # Resume training from checkpoint file
    return TorchTrainer(
        resume,
        # Was the argument `resume_from_checkpoint=checkpoint`, which Train V2 refuses.
        train_loop_config={"resume_from_checkpoint": checkpoint},
        scaling_config=train.ScalingConfig(num_workers=2),
    )


def epoch_of_checkpoint(result: Result) -> int:
    """The epoch that the file of Ray's callback was saved in, found as the page says."""
    # After training finished
    checkpoint = result.checkpoint
    with checkpoint.as_directory() as checkpoint_dir:
        lightning_checkpoint_path = f"{checkpoint_dir}/checkpoint.ckpt"
        return torch.load(lightning_checkpoint_path, weights_only=True)["epoch"]
