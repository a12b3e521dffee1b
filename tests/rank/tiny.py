"""A tiny workload with all that can go wrong: BatchNorm, dropout, augmentation, an average."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
import torchmetrics
from pydantic import Field
from torch import Tensor, nn
from torchmetrics import Metric

from train_core import ArrayDataset, Batch, Columns, Settings, Workload
from train_core.datasets.protocols import Dataset, Split, Stream
from train_core.policy.samples.randomness import SampleRandom


class TinySettings(Settings):
    num_train: int = Field(default=150, ge=0)
    num_validation: int = Field(default=70, ge=0)
    learning_rate: float = 0.01
    momentum: float | None = Field(default=None, description="None: AdamW, else SGD.")
    one_cycle: bool = True
    batch_norm: bool = True
    dropout: float = 0.2
    augmentation: float = 0.1
    averages: bool = True
    nan_from_step: int = -1
    sample_by_sample: bool = False
    scratch: str = ""


class PlainDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Reads one sample at a time and transforms it by torch's, numpy's and Python's generators."""

    def __init__(self, inner: ArrayDataset, *, transform: bool) -> None:
        self._inner = inner
        self._transform = transform

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self._inner[index]
        if self._transform:
            size = sample["x"].shape
            noise = torch.randn(size).numpy() + np.random.rand(*size)  # noqa: NPY002 (users draw so)
            sample["x"] = (sample["x"] + 0.01 * (noise + random.random())).astype(np.float32)
        return sample


class Tiny(Workload[TinySettings]):
    Settings = TinySettings
    class_names = ("zero", "one", "two")

    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.average: dict[str, Tensor] = {}
        self.num_steps = 0

    def model(self) -> nn.Module:
        norm = nn.BatchNorm1d(16) if self.settings.batch_norm else nn.Identity()
        return nn.Sequential(
            nn.Linear(8, 16), norm, nn.ReLU(), nn.Dropout(self.settings.dropout), nn.Linear(16, 3)
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.settings.momentum is not None:
            return torch.optim.SGD(
                model.parameters(), self.settings.learning_rate, momentum=self.settings.momentum
            )
        return torch.optim.AdamW(model.parameters(), self.settings.learning_rate)

    def schedule(
        self, optimizer: torch.optim.Optimizer, total_steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        if not self.settings.one_cycle:
            return None
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps)

    def dataset(self, split: Split) -> Dataset | Stream:
        number = {"train": self.settings.num_train, "validation": self.settings.num_validation}
        rng = np.random.Generator(np.random.Philox(["train", "validation", "test"].index(split)))
        x = rng.standard_normal((number.get(split, 40), 8)).astype(np.float32)
        label = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)
        data = ArrayDataset(x=x, label=label)
        if self.settings.sample_by_sample:
            return PlainDataset(data, transform=split == "train")
        return data

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        inputs = torch.from_numpy(np.ascontiguousarray(columns["x"], np.float32))
        if random is not None:
            inputs = (
                inputs + self.settings.augmentation * torch.from_numpy(random.uniform(8)).float()
            )
        batch = {"inputs": inputs}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(np.ascontiguousarray(columns["label"]))
        return batch

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        loss = nn.functional.cross_entropy(outputs, batch["targets"])
        if 0 <= self.settings.nan_from_step <= self.num_steps:
            return loss * float("nan")
        return loss

    def metrics(self) -> dict[str, Metric]:
        return {
            "accuracy": torchmetrics.classification.MulticlassAccuracy(3, average="micro"),
            "count": torchmetrics.SumMetric(),
        }

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        if isinstance(metric, torchmetrics.SumMetric):
            metric.update(torch.ones(len(outputs)))
        else:
            metric.update(outputs, batch["targets"])

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        return {"prediction": outputs.argmax(1), "probabilities": outputs.softmax(1)}

    def after_step(self, model: nn.Module, step: int) -> None:
        self.num_steps += 1
        for name, parameter in model.named_parameters() if self.settings.averages else ():
            old = self.average.setdefault(name, parameter.detach().clone())
            old.lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average, self.num_steps = state["average"], state["num_steps"]


class Linear(Tiny):
    """A linear model without anything that depends on its batch."""

    def model(self) -> nn.Module:
        return nn.Linear(8, 3)


class TinyShard:
    """Draws samples at random, by a state of its own that grows with every one."""

    def __init__(self, data: ArrayDataset, seed: int) -> None:
        self._data = data
        self._state = seed

    def read(self, count: int) -> Columns:
        return self._data.__getitems__([self._next() for _ in range(count)])

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state["state"]

    def _next(self) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % len(self._data)


class TinyStream:
    def __init__(self, data: ArrayDataset) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def shard(self, shard: int, num_shards: int, epoch: int) -> TinyShard:
        return TinyShard(self._data, epoch * num_shards + shard)


class StreamingTiny(Tiny):
    """Trains on a stream."""

    def dataset(self, split: Split) -> Dataset | Stream:
        data = super().dataset(split)
        return TinyStream(cast("ArrayDataset", data)) if split == "train" else data


class Buggy(Tiny):
    """Has a bug in its loss, which rank 1 comes to."""

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        if self.num_steps == 2 and dist.get_rank() == 1:
            batch = {"targets": batch["connection to gloo"]}
        return super().loss(outputs, batch)


class Quitting(Tiny):
    """Calls sys.exit() after step 2, as scripts do."""

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        if step == 2:
            sys.exit("enough")


class Noisy(Tiny):
    """Draws where it is evaluated, too, and in its hook."""

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        outputs = super().forward(model, batch)
        return outputs + torch.randn_like(outputs)

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1e-3 * torch.randn_like(parameter))


class DrawsClasses(Tiny):
    """Draws a class by its probability in its pass: torch draws none by what is no number."""

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        outputs = super().forward(model, batch)
        torch.multinomial(outputs.detach().softmax(1), 1)
        return outputs


class KeepsBoth(Tiny):
    """Keeps an average where the model is, and counts in main memory, also as an array."""

    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.counted = torch.zeros(3)
        self.array = np.zeros(3)

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        self.counted += torch.ones(3)
        self.array += self.counted.numpy()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"counted": self.counted, "array": self.array}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.counted, self.array = state["counted"], state["array"]


class Forgetful(Tiny):
    """Its hook counts, and no checkpoint knows how far."""

    count = 0

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        self.count += 1
        with torch.no_grad():
            next(model.parameters()).add_(1e-3 * self.count)


class KnowsItsProcess(Tiny):
    """A model that is made after another one was trained in the same process learns otherwise."""

    has_trained = False
    factor = 1.0

    def model(self) -> nn.Module:
        self.factor = 2.0 if KnowsItsProcess.has_trained else 1.0
        return super().model()

    def loss(self, outputs: Any, batch: Batch) -> torch.Tensor:
        return super().loss(outputs, batch) * self.factor

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        KnowsItsProcess.has_trained = True


class CountsPasses(Tiny):
    """Each second pass of a process weighs more: an attribute that is no buffer."""

    num_passes = 0

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        self.num_passes += model.training
        return super().forward(model, batch) * (1 + self.num_passes % 2)


class DrawsForItself(Tiny):
    """Its batches are drawn from a generator that nobody has seeded."""

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        batch = super().prepare(columns, random)
        noise = np.random.default_rng().standard_normal(batch["inputs"].shape)
        return batch | {"inputs": batch["inputs"] + torch.from_numpy(noise).float()}


class Undetermined(Tiny):
    """Its hook draws from what no seed decides."""

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        with torch.no_grad():
            next(model.parameters()).add_(1e-3 * (1 + random.SystemRandom().random()))


class Mortal(Tiny):
    """Rank 1 of the first attempt kills itself after step 4."""

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        died = Path(self.settings.scratch, "died")
        if step == 4 and dist.is_initialized() and dist.get_rank() == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Terminated(Tiny):
    """The last rank of the first attempt gets SIGTERM after step 7; then steps take a while.

    By then the checkpoint of the first validation is known to be committed.
    """

    @property
    def is_mortal(self) -> bool:
        return dist.get_rank() == dist.get_world_size() - 1

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        if dist.is_initialized() and step >= 7:
            got = Path(self.settings.scratch, f"got-sigterm-{dist.get_rank()}")
            if self.is_mortal and not got.exists():
                got.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1.2)


class AllTerminated(Terminated):
    """All ranks get it."""

    is_mortal = True


class Hanging(Tiny):
    """Rank 1 of the first attempt hangs after step 4."""

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        hung = Path(self.settings.scratch, "hung")
        if step == 4 and dist.is_initialized() and dist.get_rank() == 1 and not hung.exists():
            hung.touch()
            hang_for_good()


class HangingScorer(Tiny):
    """Who evaluates, and is no rank, hangs the first time."""

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        hung = Path(self.settings.scratch, "hung")
        if not dist.is_initialized() and not hung.exists():
            hung.touch()
            hang_for_good()
        return super().forward(model, batch)


def hang_for_good() -> None:
    while True:
        time.sleep(60)


class Waiting(Tiny):
    """Stands still after step 3 until `go-on` lies in `scratch`."""

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        while (
            step == 3
            and self.settings.scratch
            and not Path(self.settings.scratch, "go-on").exists()
        ):
            time.sleep(0.02)


class Unhurried(Tiny):
    """Takes a second for a step, until `go-on` lies in `scratch`."""

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        scratch = self.settings.scratch
        if dist.is_initialized() and not (scratch and Path(scratch, "go-on").exists()):
            time.sleep(1)


def hoard() -> None:
    """Take 8 GB, and wait for what comes of it.

    More than the limit by far: what a test before this one used may still have counted for it.
    """
    hoarded = []
    for _ in range(40):
        hoarded.append(torch.ones(50_000_000))
        time.sleep(0.1)
    time.sleep(60)


class Hungry(Tiny):
    """Rank 1 hoards after step 3."""

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        if step == 3 and dist.is_initialized() and dist.get_rank() == 1:
            hoard()


class HungryScorer(Tiny):
    """Who scores hoards."""

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        hoard()
        return super().predictions(outputs)


class Backbone(Tiny):
    """Trains only its last layer: nine tenths of the weights never change."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 400), nn.Linear(400, 8), nn.ReLU(), nn.Linear(8, 3))
        for layer in model[:2]:
            layer.requires_grad_(False)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    def after_step(self, model: nn.Module, step: int) -> None:
        """No average: it would be of all weights."""


class Poisoned(Tiny):
    """The weights become NaN after step 3, although the loss was a number."""

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        if step == 3:
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))
