"""A workload that is right, and its relatives that each do one thing that goes wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torchmetrics
from torch import Tensor, nn
from torchmetrics.classification import BinaryAveragePrecision
from torchmetrics.image import PeakSignalNoiseRatio

from train_core import ArrayDataset, Batch, Columns, Settings, Split, Workload
from train_core.policy.samples.randomness import SampleRandom

WIDTH = 6


class Right(Workload[Settings]):
    """A small classifier."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def dataset(self, split: Split) -> ArrayDataset:
        x = np.random.Generator(np.random.Philox(7)).standard_normal((64, WIDTH), np.float32)
        return ArrayDataset(x=x, label=(x[:, 0] + 0.3 * x[:, 1] > 0).astype(np.int64))

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        batch = {"inputs": torch.from_numpy(np.array(columns["x"]))}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(np.array(columns["label"]))
        return batch

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        targets = batch["targets"][:, None].float()
        return nn.functional.binary_cross_entropy_with_logits(outputs, targets)

    def metrics(self) -> Mapping[str, torchmetrics.Metric]:
        return {"accuracy": torchmetrics.classification.BinaryAccuracy()}

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str
    ) -> None:
        metric.update(outputs[:, 0].sigmoid(), batch["targets"])

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        score = outputs[:, 0].sigmoid()
        return {"prediction": (score > 0.5).long(), "score": score}


class Logits(Right):
    """torchmetrics applies a sigmoid by what a batch contains."""

    def metrics(self) -> Mapping[str, torchmetrics.Metric]:
        return {"precision": BinaryAveragePrecision()}

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str
    ) -> None:
        metric.update(outputs[:, 0], batch["targets"])


class MeanOfBatches(torchmetrics.Metric):
    """Adds up the means of batches, and divides by their number."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("batches", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.total += ((preds > 0.5) == target).float().mean() ** 2
        self.batches += 1

    def compute(self) -> Tensor:
        return self.total / self.batches


class Batches(Right):
    """A metric of the batches, not of the rows."""

    def metrics(self) -> Mapping[str, torchmetrics.Metric]:
        return {"squared": MeanOfBatches()}


class Averaged(torchmetrics.Metric):
    """Its state is the mean, which shards of other sizes, or counts, do not merge."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="max")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.total += preds.sum()

    def compute(self) -> Tensor:
        return self.total


class WronglyMerged(Right):
    """The largest of sums is no sum."""

    def metrics(self) -> Mapping[str, torchmetrics.Metric]:
        return {"total": Averaged()}


class SignalToNoise(Right):
    """A metric of torchmetrics with states of several kinds."""

    def metrics(self) -> Mapping[str, torchmetrics.Metric]:
        return {"psnr": PeakSignalNoiseRatio(data_range=1.0)}

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str
    ) -> None:
        metric.update(outputs[:, 0].sigmoid(), batch["targets"].float())


class InBatch(Right):
    """Each sample is compared with the others of its batch."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs - outputs.T).abs().log1p().logsumexp(1).mean()


class NeedsTargets(Right):
    """Inference has no targets."""

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        return {
            "inputs": torch.from_numpy(np.array(columns["x"])),
            "targets": torch.from_numpy(np.array(columns["label"])),
        }


class NoRowAlone(Right):
    """`squeeze` takes the dimension of the rows as well, if there is one row."""

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        return torch.atleast_1d(model(batch["inputs"]).squeeze())[:, None]

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"score": outputs[:, 0] - outputs[:, 0].mean()}


class NotFinite(Right):
    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"score": (outputs[:, 0] * 0).log() * 0}


class TooLong(Right):
    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"score": outputs.repeat(2, 1)[:, 0]}


class Short(Right):
    """The schedule is for fewer steps than the training has."""

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)


class NoRate(Right):
    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(np.sqrt(9.0 - step)))


class Drawing(nn.Module):
    """Draws from the operating system, which no seed decides."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * random.SystemRandom().random()


class NotRepeatable(Right):
    def model(self) -> nn.Module:
        return Drawing()


class Counting(nn.Module):
    """Counts its steps in an attribute, which no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return self.linear(x) * (1.0 + 0.1 * self.calls)


class LostState(Right):
    def model(self) -> nn.Module:
        return Counting()


class SharedBuffer(Right):
    """A buffer of its model is a part of a parameter."""

    def model(self) -> nn.Module:
        model = super().model()
        weight = model.get_parameter("0.weight")
        model.register_buffer("first", weight.detach()[1:4])
        return model


class BrokenInEvaluation(Right):
    """Its metric reads a column that the batch has not."""

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str
    ) -> None:
        metric.update(outputs[:, 0].sigmoid(), batch["answers"])


class HungryInEvaluation(Right):
    """Measures batches of more than 16 rows only: there are 64."""

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str
    ) -> None:
        if len(outputs) <= 16:
            raise ValueError("too few rows to rank")
        super().update_metric(metric, outputs, batch, name)


class Hungry(Right):
    """Refuses batches of fewer than 16 samples."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        if torch.is_grad_enabled() and len(outputs) < 16:
            raise ValueError("too few negatives")
        return super().loss(outputs, batch)


@dataclass
class Scores:
    """Outputs that cannot be cut into rows from outside."""

    logits: Tensor


class InDataclass(Right):
    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return Scores(model(batch["inputs"]))

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return super().loss(outputs.logits, batch)

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str
    ) -> None:
        super().update_metric(metric, outputs.logits, batch, name)

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        return super().predictions(outputs.logits)


class KeepsModel(Right):
    """`model()` leaves in the workload what `loss` uses."""

    def model(self) -> nn.Module:
        made = super().model()
        self.anchor = [p.detach().clone() for p in made.parameters()]
        self.made = made
        return made

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        pairs = zip(self.made.parameters(), self.anchor, strict=True)
        return super().loss(outputs, batch) + 0.01 * sum(((p - a) ** 2).sum() for p, a in pairs)

    def state_dict(self) -> dict[str, Any]:
        return {"anchor": self.anchor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.anchor = [tensor.clone() for tensor in state["anchor"]]


class Broken(Right):
    """A mistake in the loss."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs.mean() / batch["weights"].mean()


class Normal(Right):
    """Its scale is a parameter that has to be positive."""

    def model(self) -> nn.Module:
        return Scaled()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(WIDTH, 1), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.distributions.Normal(self.linear(x), self.scale, validate_args=True).mean


class Called(Right):
    """Calls the metric, which updates it and computes it, too."""

    def metrics(self) -> Mapping[str, torchmetrics.Metric]:
        return {"auroc": torchmetrics.classification.BinaryAUROC()}

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str = ""
    ) -> None:
        metric(outputs[:, 0].sigmoid(), batch["targets"])


class Squeezed(Right):
    """Of a row alone the outputs have no dimension."""

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str = ""
    ) -> None:
        metric.update(outputs.squeeze().sigmoid(), batch["targets"])


class OneRow(Right):
    """A validation split of one row."""

    def dataset(self, split: Split) -> ArrayDataset:
        whole = super().dataset(split)
        return whole if split == "train" else ArrayDataset(**whole[:1])


class Empty(Right):
    def dataset(self, split: Split) -> ArrayDataset:
        whole = super().dataset(split)
        return whole if split == "train" else ArrayDataset(**whole[:0])


class SixteenWeights(Right):
    """Gives the loss a tensor with as many values as there are rows, but none of the rows."""

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return {"logits": model(batch["inputs"]), "weights": torch.linspace(0, 1, 16)}

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return super().loss(outputs["logits"], batch) * outputs["weights"].sum()

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str = ""
    ) -> None:
        super().update_metric(metric, outputs["logits"], batch, name)

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        return super().predictions(outputs["logits"])


class NoColumn(Right):
    def predictions(self, outputs: Tensor) -> dict[str, Any]:
        return {"mean": outputs.mean(), "list": outputs[:, 0].tolist()}


class Lazy(Right):
    def model(self) -> nn.Module:
        return nn.LazyLinear(1)


class ShortSecond(Right):
    """The second of two schedules is for fewer steps than are left to it."""

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        first = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)
        second = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[5])


class OnlyInWorkers(Right):
    """Asks the process group, which the workers have."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return super().loss(outputs, batch) * torch.distributed.get_world_size()


class ListedRates(Right):
    """A rate for each step, and none beyond."""

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        rates = [1.0] * total_steps
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])
