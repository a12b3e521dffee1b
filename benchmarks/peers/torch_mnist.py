"""Plain loops of ResNet-18 on MNIST, on one device, told when to train.

    tutorial   the introductory tutorial's model, data, optimizer and loop, as they are written
    tuned      the same with torch's own advice: processes that load, pinned memory, channels last,
               bf16 under autocast, a fused optimizer, cuDNN's autotuner, torch.compile
    same-model `tuned` with evertrain's model and optimizer
    one-batch  the options of `tuned`, with evertrain's model and optimizer, on one batch that is on
               the device already: the compute bound

Torchvision's data set and model are taken if it is installed. Without it, they are those of
`peers/mnist.py`, which read and compute the same.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.gpu.bench import serve_contender, synchronize
from train_core.workloads.mnist import MnistResNet18, MnistSettings

TUTORIAL, TUNED, SAME_MODEL, ONE_BATCH = "tutorial", "tuned", "same-model", "one-batch"
HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
"""Whether it is installed."""


def tutorial_data(root: str, idx_folder: str) -> Any:
    """MNIST as the tutorial reads it, from `root`/MNIST/raw; else from the packed IDX files."""
    if not HAS_TORCHVISION:
        from benchmarks.peers.mnist import PerSampleMnist

        return PerSampleMnist(idx_folder)
    from torchvision.datasets import MNIST
    from torchvision.transforms import Compose, Normalize, ToTensor

    return MNIST(root, train=True, transform=Compose([ToTensor(), Normalize((0.5,), (0.5,))]))


def tutorial_model() -> nn.Module:
    """ResNet-18 with one input channel and ten classes, as the tutorial makes it."""
    if not HAS_TORCHVISION:
        from benchmarks.peers.mnist import tutorial_model as same_model

        return same_model()
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(1, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)
    return model


class Loop:
    """One of the loops."""

    def __init__(
        self,
        kind: str,
        device: str,
        root: str,
        idx_folder: str,
        batch_size: int,
        workers: int,
        compiles: bool,
    ) -> None:
        self.device = torch.device(device)
        on_gpu = self.device.type == "cuda"
        if not on_gpu:
            # As many as evertrain has.
            torch.set_num_threads(1)
        self.batch_size = batch_size
        self.is_tuned = kind != TUTORIAL
        self.forward: Callable[[Tensor], Tensor]
        model = tutorial_model()
        if kind in (SAME_MODEL, ONE_BATCH):
            workload = MnistResNet18(MnistSettings(data=idx_folder))
            model = workload.model()
        model.to(self.device)
        if self.is_tuned:
            torch.backends.cudnn.benchmark = True
            torch.set_float32_matmul_precision("high")
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        self.optimizer: torch.optim.Optimizer
        if kind in (SAME_MODEL, ONE_BATCH):
            self.optimizer = workload.optimizer(model)
        elif kind == TUNED:
            self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
        else:
            self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
        self.model = model.train()
        self.forward = torch.compile(model) if compiles and self.is_tuned else model
        self.criterion = nn.CrossEntropyLoss()
        options: dict[str, Any] = {}
        if self.is_tuned:
            options = {"num_workers": workers, "persistent_workers": workers > 0}
            options["pin_memory"] = on_gpu
        self.loader: Any = DataLoader(
            tutorial_data(root, idx_folder),
            batch_size=batch_size,
            shuffle=True,
            drop_last=True,
            **options,
        )
        self.one_batch: tuple[Tensor, Tensor] | None = None
        if kind == ONE_BATCH:
            images, labels = next(iter(DataLoader(self.loader.dataset, batch_size)))
            self.one_batch = self.moved(images), labels.to(self.device)

    def turn(self, steps: int, warm_up: int) -> float:
        """Train within one epoch; images/s of the steps after the warm-up."""
        begin = 0.0
        batches = self.batches()
        for number in range(warm_up + steps):
            if number == warm_up:
                synchronize(self.device)
                begin = time.perf_counter()
            self.step(*next(batches))
        synchronize(self.device)
        return steps * self.batch_size / (time.perf_counter() - begin)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches on the device."""
        if self.one_batch is not None:
            return repeat(self.one_batch)
        return (
            (self.moved(images), labels.to(self.device, non_blocking=self.is_tuned))
            for images, labels in self.loader
        )

    def moved(self, images: Tensor) -> Tensor:
        """Images on the device."""
        if not self.is_tuned:
            return images.to(self.device)
        return images.to(self.device, non_blocking=True, memory_format=torch.channels_last)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """The tutorial's step."""
        with self.precision():
            loss = self.criterion(self.forward(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast, if it is tuned."""
        if self.is_tuned:
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def close(self) -> None:
        """End the processes that load."""
        self.loader = None


if __name__ == "__main__":
    serve_contender(Loop)
