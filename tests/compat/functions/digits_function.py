"""A training function on handwritten digits, and predictors of what it reports."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from ray import train
from ray.train import Checkpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn

from train_core import predictors


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def train_digits(config: dict[str, Any]) -> None:
    """Trains on all digits, and reports a state dict, or the whole model, after each epoch."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=config.get("lr", 0.05))
    for epoch in range(config["epochs"]):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model if config.get("whole") else model.state_dict(), f"{folder}/model.pt")
            train.report(
                {"loss": loss.item(), "epoch": epoch}, checkpoint=Checkpoint.from_directory(folder)
            )


def predictor(folder: Path) -> nn.Module:
    return predictors.from_state_dict(folder / "model.pt", new_model())


def whole_model(folder: Path) -> Any:
    model = predictors.read(folder / "model.pt")

    def predict(inputs: Tensor) -> Tensor:
        found: Tensor = model(inputs)
        return found

    return predict
