"""ResNet-18 on MNIST, or any data set in MNIST's files, from a folder at any fsspec URL."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from pydantic import Field
from torch import nn

from train_core.datasets.arrays import ArrayDataset
from train_core.datasets.protocols import Split
from train_core.errors import DataError
from train_core.workloads.idx import pick_idx
from train_core.workloads.images import ImageClassifier, ImageSettings
from train_core.workloads.resnet import ResNet18, load_published_weights

_HELD_OUT_SEED = 0
"""Which samples are held out depends on their number alone, never on a run's seed."""


class MnistSettings(ImageSettings):
    """The settings of `MnistResNet18`."""

    data: str = Field(
        min_length=1,
        description="URL of the folder that has the four IDX files, .gz or not.",
    )
    validation_samples: int = Field(
        default=5000,
        ge=1,
        description="Training samples that are held out for validation.",
    )
    weights: str = Field(
        default="",
        description="URL of published weights (safetensors) to start from; '': none.",
    )


class MnistResNet18(ImageClassifier[MnistSettings]):
    """Grey images of 28 x 28 bytes in ten classes, and ResNet-18 with one input channel."""

    Settings = MnistSettings
    image_shape = (28, 28)
    white = 255

    def model(self) -> ResNet18:
        """ResNet-18 with one input channel."""
        return ResNet18(in_channels=1, num_classes=len(self.class_names))

    def initialize(self, model: nn.Module) -> None:
        """Start from published weights if they are set."""
        if self.settings.weights:
            assert isinstance(model, ResNet18)
            load_published_weights(model, self.settings.weights)

    def sources(self) -> Mapping[str, str]:
        """The IDX files, plain or packed."""
        return {"idx": f"{glob.escape(self.settings.data.rstrip('/'))}/*-idx?-ubyte*"}

    def dataset(self, split: Split) -> ArrayDataset:
        """The files' test split; their training split less what is held out for validation."""
        if split == "test":
            return self._read("t10k")
        train, validation = self._train_and_validation
        return train if split == "train" else validation

    @cached_property
    def _train_and_validation(self) -> tuple[ArrayDataset, ArrayDataset]:
        whole = self._read("train")
        held_out = self.settings.validation_samples
        if held_out >= len(whole):
            raise DataError(
                f"validation_samples is {held_out} but {self.settings.data} has {len(whole)} "
                "training samples: hold out fewer"
            )
        order = np.random.Generator(np.random.Philox(_HELD_OUT_SEED)).permutation(len(whole))
        kept, held = np.sort(order[:-held_out]), np.sort(order[-held_out:])
        return ArrayDataset(**whole.__getitems__(kept)), ArrayDataset(**whole.__getitems__(held))

    def _read(self, prefix: str) -> ArrayDataset:
        folder = self.settings.data
        files = self.files("idx")
        images = pick_idx(files, folder, f"{prefix}-images-idx3-ubyte")
        labels = pick_idx(files, folder, f"{prefix}-labels-idx1-ubyte")
        num_classes = len(self.class_names)
        if images.shape[1:] != self.image_shape or images.dtype != np.uint8:
            raise DataError(
                f"{prefix} images in {folder} are {images.dtype} of shape {images.shape}, "
                "expected uint8 of shape (N, 28, 28)"
            )
        if labels.shape != images.shape[:1]:
            raise DataError(
                f"{prefix} labels in {folder} have shape {labels.shape}, "
                f"expected ({len(images)},), one for each image"
            )
        if not len(images):
            raise DataError(f"{folder} has no {prefix} images: expected at least one")
        if labels.min() < 0 or labels.max() >= num_classes:
            raise DataError(
                f"{prefix} labels in {folder} are {labels.min()} to {labels.max()}, "
                f"expected 0 to {num_classes - 1}"
            )
        return ArrayDataset(image=images, label=labels.astype(np.int64))
