"""What the shipped classifiers of small grey images share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from train_core.datasets.protocols import Columns
from train_core.errors import DataError
from train_core.policy.samples.randomness import SampleRandom
from train_core.workload import Batch, Settings, Workload


class ImageSettings(Settings):
    """The settings of AdamW, which every image classifier has."""

    learning_rate: float = Field(default=2e-3, gt=0, description="AdamW's peak learning rate.")
    weight_decay: float = Field(
        default=1e-2,
        ge=0,
        description="AdamW's weight decay, of matrices and kernels only.",
    )


ImageSettingsT = TypeVar("ImageSettingsT", bound=ImageSettings)


class ImageClassifier(Workload[ImageSettingsT]):
    """Classifies grey images: raw column `image`, shape (N, H, W), into those of `label`, (N,).

    Trains with AdamW and one cycle of the learning rate on the cross-entropy; measures
    `accuracy` and the macro average of F1 as `f1`.
    """

    class_names = tuple(str(digit) for digit in range(10))
    image_shape: ClassVar[tuple[int, int]]
    white: ClassVar[int]
    """The brightest value of a raw pixel; the darkest is 0."""

    def augment(self, images: npt.NDArray[Any], random: SampleRandom) -> npt.NDArray[Any]:
        """Raw images as the training is to see them. Default: as they are."""
        return images

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """Pixels as floats in [-1, 1], shape (N, 1, H, W); labels as int64."""
        images = self._images(columns)
        if random is not None:
            images = self.augment(images, random)
        pixels = images.astype(np.float32)
        pixels *= np.float32(2 / self.white)
        pixels -= 1
        batch = {"inputs": torch.from_numpy(pixels[:, None])}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(columns["label"].astype(np.int64))
        return batch

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy, in single precision whatever the model computed in."""
        return functional.cross_entropy(outputs.float(), batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        """`accuracy` over all samples, and `f1` averaged over the classes."""
        # Labels are checked where they are read, so not again with every batch.
        num_classes = len(self.class_names)
        return {
            "accuracy": MulticlassAccuracy(num_classes, average="micro", validate_args=False),
            "f1": MulticlassF1Score(num_classes, average="macro", validate_args=False),
        }

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """`prediction`, int64 of shape (N,), and `probabilities`, float32 of (N, classes)."""
        probabilities = outputs.float().softmax(dim=1)
        return {
            "prediction": probabilities.argmax(dim=1),
            "probabilities": probabilities,
        }

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Fused AdamW; biases and the scales of norms do not decay."""
        parameters = list(model.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            groups,
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )

    def schedule(
        self, optimizer: torch.optim.Optimizer, total_steps: int
    ) -> torch.optim.lr_scheduler.LambdaLR:
        """One cycle over the whole training; see `one_cycle`."""
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: one_cycle(step, total_steps)
        )

    def _images(self, columns: Columns) -> npt.NDArray[Any]:
        if "image" not in columns:
            raise DataError(f"column 'image' is missing, found {', '.join(sorted(columns))}")
        images = columns["image"]
        if images.shape[1:] != self.image_shape:
            expected = ", ".join(map(str, self.image_shape))
            raise DataError(f"column 'image' has shape {images.shape}, expected (N, {expected})")
        return images


def one_cycle(step: int, total_steps: int) -> float:
    """The share of the peak learning rate at `step`, counted from 0.

    It rises linearly over the first tenth, falls as a cosine to 1 % and stays there, so that a
    run which is given more epochs goes on learning (I. Loshchilov, F. Hutter: SGDR, 2017;
    P. Goyal et al.: Accurate, large minibatch SGD, 2017).
    """
    warm_up = max(1, total_steps // 10)
    if step < warm_up:
        return (step + 1) / warm_up
    progress = (step + 1 - warm_up) / (total_steps + 1 - warm_up)
    return 0.01 + 0.99 * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
