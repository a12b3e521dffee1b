"""Handwritten digits that come with scikit-learn: the default workload, with no download."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import nn

from train_core.datasets.arrays import ArrayDataset
from train_core.datasets.protocols import Split
from train_core.policy.samples.randomness import SampleRandom
from train_core.workloads.images import ImageClassifier, ImageSettings

ORDER = Path(__file__).with_name("digits_order.txt")
"""The digits in the order of the splits: stratified by scikit-learn's `train_test_split`."""
NUM_TRAIN, NUM_VALIDATION = 1257, 180


class DigitsSettings(ImageSettings):
    """The settings of `Digits`."""

    learning_rate: float = Field(default=4e-3, gt=0, description="AdamW's peak learning rate.")
    width: int = Field(
        default=16,
        ge=1,
        le=512,
        description="Channels of the first convolution; then twice that.",
    )
    dropout: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the features that training drops.",
    )
    max_shift: int = Field(
        default=1,
        ge=0,
        le=4,
        description="Pixels by which training moves an image, at most.",
    )


class Digits(ImageClassifier[DigitsSettings]):
    """1,797 digits of 8 x 8 pixels with values 0 to 16, and a small convolutional network."""

    Settings = DigitsSettings
    image_shape = (8, 8)
    white = 16

    def model(self) -> nn.Module:
        """Three convolutions with BatchNorm, dropout and a linear classifier."""
        width, wide = self.settings.width, 2 * self.settings.width
        return nn.Sequential(
            *_convolution(1, width),
            *_convolution(width, wide),
            nn.MaxPool2d(2),
            *_convolution(wide, wide),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(self.settings.dropout),
            nn.Linear(4 * wide, len(self.class_names)),
        )

    def dataset(self, split: Split) -> ArrayDataset:
        """A stratified 70, 10 or 20 % of the digits, always the same."""
        return _splits()[split]

    def augment(self, images: npt.NDArray[Any], random: SampleRandom) -> npt.NDArray[Any]:
        """Each image moved by up to `max_shift` pixels in both directions."""
        return shift(images, self.settings.max_shift, random)


def shift(images: npt.NDArray[Any], max_shift: int, random: SampleRandom) -> npt.NDArray[Any]:
    """Images (N, H, W), each moved by -max_shift to max_shift pixels; 0 moves in."""
    height, width = images.shape[1:]
    padded = np.pad(images, ((0, 0), (max_shift, max_shift), (max_shift, max_shift)))
    offsets = random.integers(0, 2 * max_shift + 1, 2)
    rows = offsets[:, 0, None] + np.arange(height)
    columns = offsets[:, 1, None] + np.arange(width)
    samples = np.arange(len(images))
    moved: npt.NDArray[Any] = padded[samples[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved


def _convolution(in_channels: int, out_channels: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(out_channels), nn.ReLU()


@cache
def _splits() -> dict[Split, ArrayDataset]:
    # Only the file is read: every process would spend a second on importing scikit-learn.
    package = find_spec("sklearn")
    assert package
    assert package.submodule_search_locations
    file = Path(package.submodule_search_locations[0], "datasets/data/digits.csv.gz")
    table = np.loadtxt(file, dtype=np.uint8, delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    order = np.array(ORDER.read_text().split(), np.int64)
    train, validation, test = np.split(order, [NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION])
    chosen: dict[Split, npt.NDArray[np.int64]] = {
        "train": train,
        "validation": validation,
        "test": test,
    }
    return {
        split: ArrayDataset(image=images[indices], label=labels[indices])
        for split, indices in chosen.items()
    }
