"""Is a tumour malignant? A training function for Ray Train, and the trainer that runs it.

The file runs by itself, `python tumours_on_ray.py`, and knows nothing of evertrain.
"""

import os
import tempfile

import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def training_samples() -> TensorDataset:
    """The patients that are held out neither for validation nor for the test."""
    values, labels = load_breast_cancer(return_X_y=True)
    values, _, labels, _ = train_test_split(
        values, labels, test_size=0.2, stratify=labels, random_state=0
    )
    values, _, labels, _ = train_test_split(
        values, labels, test_size=0.2, stratify=labels, random_state=0
    )
    return TensorDataset(torch.tensor(values, dtype=torch.float32), torch.tensor(labels))


def new_model() -> nn.Module:
    """The first layer learns each measurement's mean and deviation."""
    return nn.Sequential(
        nn.BatchNorm1d(30, affine=False), nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2)
    )


def train_tumours(config: dict) -> None:
    """The training function, as Ray's documentation has them."""
    torch.manual_seed(0)
    loader = prepare_data_loader(DataLoader(training_samples(), batch_size=32, shuffle=True))
    model = prepare_model(new_model())
    module = getattr(model, "module", model)  # without DDP, if there is one worker
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])

    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            module.load_state_dict(torch.load(os.path.join(folder, "model.pt")))
            state = torch.load(os.path.join(folder, "state.pt"))
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    for epoch in range(first, config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        total = 0.0
        for values, labels in loader:
            loss = nn.functional.cross_entropy(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()

        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(module.state_dict(), os.path.join(folder, "model.pt"))
                state = {"optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, os.path.join(folder, "state.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            metrics = {"loss": total / len(loader), "epoch": epoch}
            ray.train.report(metrics, checkpoint=checkpoint)


def trainer() -> TorchTrainer:
    """The function, with what Ray is to run it with."""
    return TorchTrainer(
        train_tumours,
        train_loop_config={"lr": 0.005, "epochs": 10},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="tumours",
            failure_config=FailureConfig(max_failures=2),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
            ),
        ),
    )


if __name__ == "__main__":
    trainer().fit()
