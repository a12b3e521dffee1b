"""How evertrain evaluates, and scores data with, what `tumours_on_ray.py` reports."""

from pathlib import Path

from torch import nn
from tumours_on_ray import new_model

from train_core import predictors


def predictor(folder: Path) -> nn.Module:
    """The model with the weights in a reported folder."""
    return predictors.from_state_dict(folder / "model.pt", new_model())
