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
from torchmetrics import Metric
from torchmetrics.classification import BinaryAveragePrecision
from torchmetrics.image import PeakSignalNoiseRatio

from train_core import ArrayDataset, Batch, Columns, Settings, Split, Workload
from train_core.policy.samples.randomness import SampleRandom
from train_core.rehearsal.few_rows import NUM_ROWS

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

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": torchmetrics.classification.BinaryAccuracy()}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        metric.update(outputs[:, 0].sigmoid(), batch["targets"])

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        score = outputs[:, 0].sigmoid()
        return {"prediction": (score > 0.5).long(), "score": score}


class WithoutLabel(Right):
    """One of its samples, which is in the first batch, has no label."""

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        batch = super().prepare(columns, random)
        if "targets" in batch:
            batch["targets"] = batch["targets"].float()
            batch["targets"][-1] = float("nan")
        return batch


class OfManySamples(Right):
    """Its loss is a number for twelve samples or more."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        loss = super().loss(outputs, batch)
        return loss if len(outputs) >= 12 else loss * float("nan")


class Logits(Right):
    """torchmetrics applies a sigmoid by what a batch contains."""

    def metrics(self) -> Mapping[str, Metric]:
        return {"precision": BinaryAveragePrecision()}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        metric.update(outputs[:, 0], batch["targets"])


class MeanOfBatches(Metric):
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

    def metrics(self) -> Mapping[str, Metric]:
        return {"squared": MeanOfBatches()}


class Averaged(Metric):
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

    def metrics(self) -> Mapping[str, Metric]:
        return {"total": Averaged()}


class SignalToNoise(Right):
    """A metric of torchmetrics with states of several kinds."""

    def metrics(self) -> Mapping[str, Metric]:
        return {"psnr": PeakSignalNoiseRatio(data_range=1.0)}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
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


class Leaks(Right):
    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        batch = super().prepare(columns, random)
        if "targets" in batch:
            batch["inputs"][:, 0] = batch["targets"]
        return batch


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

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        metric.update(outputs[:, 0].sigmoid(), batch["answers"])


class HungryInEvaluation(Right):
    """Measures batches of more than 16 rows only: there are 64."""

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
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

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
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

    def metrics(self) -> Mapping[str, Metric]:
        return {"auroc": torchmetrics.classification.BinaryAUROC()}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str = "") -> None:
        metric(outputs[:, 0].sigmoid(), batch["targets"])


class Squeezed(Right):
    """Of a row alone the outputs have no dimension."""

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str = "") -> None:
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


class AsManyWeights(Right):
    """Gives the loss a tensor with as many values as there are rows, but none of the rows."""

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return {"logits": model(batch["inputs"]), "weights": torch.linspace(0, 1, NUM_ROWS)}

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return super().loss(outputs["logits"], batch) * outputs["weights"].sum()

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str = "") -> None:
        super().update_metric(metric, outputs["logits"], batch, name)

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        return super().predictions(outputs["logits"])


class Unnamed(Right):
    class_names = ("no", "yes")

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"class": super().predictions(outputs)["prediction"]}


class Reserved(Right):
    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"id": outputs[:, 0]}


class FewClasses(Right):
    class_names = ("no",)


class SoftTargets(Right):
    """Of each class the share that a row has of it."""

    class_names = ("no", "yes")

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        batch = super().prepare(columns, random)
        if "targets" in batch:
            batch["targets"] = batch["targets"].float() * 0.8 + 0.1
        return batch

    def update_metric(
        self, metric: torchmetrics.Metric, outputs: Any, batch: Batch, name: str
    ) -> None:
        metric.update(outputs[:, 0].sigmoid(), batch["targets"] > 0.5)


class NoPredictions(Right):
    predictions = Workload.predictions


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


class StatesOfMeans(Metric):
    """A ratio of two means, which is that of the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("right", torch.tensor(0.0), dist_reduce_fx="mean")
        self.add_state("rows", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, scores: Tensor, targets: Tensor) -> None:
        self.right += ((scores > 0.5) == targets).sum()
        self.rows += len(targets)

    def compute(self) -> Tensor:
        return self.right / self.rows


class RatioOfMeans(Right):
    """Right on any number of shards."""

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": StatesOfMeans()}


class Correlated(Right):
    """torchmetrics' Pearson puts states together itself, which nothing reduces."""

    def metrics(self) -> Mapping[str, Metric]:
        return {"correlation": torchmetrics.PearsonCorrCoef()}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        metric.update(outputs[:, 0].sigmoid(), batch["targets"].float())


class Lists(Metric):
    """Keeps a list, of which the mean shall be taken."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("kept", [], dist_reduce_fx="mean")

    def update(self, scores: Tensor, targets: Tensor) -> None:
        self.kept.append(scores)

    def compute(self) -> Tensor:
        return torch.cat(self.kept).median()


class MeanOfLists(Right):
    """Its metric's list cannot be merged."""

    def metrics(self) -> Mapping[str, Metric]:
        return {"median": Lists()}


class Texts(Lists):
    """Keeps texts."""

    def __init__(self) -> None:
        torchmetrics.Metric.__init__(self)
        self.add_state("kept", [], dist_reduce_fx="cat")

    def update(self, scores: Tensor, targets: Tensor) -> None:
        self.kept.append("yes")


class KeepsTexts(Right):
    """Its metric's states are no tensors."""

    def metrics(self) -> Mapping[str, Metric]:
        return {"texts": Texts()}


class MeanOfMeans(Right):
    """The mean of the batches' means, of which the last has fewer rows."""

    def metrics(self) -> Mapping[str, Metric]:
        return {"score": torchmetrics.MeanMetric()}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        metric.update(outputs[:, 0].sigmoid().mean())


class Moving(nn.Module):
    """Subtracts a moving mean, which evaluation moves, too."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean if self.training else x


class MovedByEvaluation(Right):
    """What is trained depends on which rows were validated here."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), Moving(), nn.ReLU(), nn.Linear(8, 1))


class Weighs(Right):
    """A mean over weights, where weight() does not say so: two rows of many count ten times."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        targets = batch["targets"][:, None].float()
        weights = torch.where(batch["inputs"][:, :1].abs() > 1.0, 10.0, 1.0)
        losses = nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return (losses * weights).sum() / weights.sum()


class Remembers(torch.optim.SGD):
    """Keeps norms in a list of its own, and goes by them from the third step on."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.norms: list[float] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as users write it
        for p in self.param_groups[0]["params"]:
            self.norms.append(float(p.grad.norm()))
            p.sub_(0.01 * p.grad / (1 + sum(self.norms[:-12])))


class ListOfNorms(Right):
    """A resume loses the list."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Remembers(model.parameters(), lr=0.01)


class Delegating(torch.optim.Optimizer):
    """Delegates to another optimizer, and has none of torch's own attributes."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.defaults = inner.defaults

    @property
    def param_groups(self) -> Any:  # type: ignore[override]  # as users write it
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # as users write it
        return self.inner.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as users write it
        self.inner.step()


class Delegated(Right):
    """Right: the inner optimizer is saved and restored."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Delegating(torch.optim.Adam(model.parameters(), lr=0.01))


class DrawsInEvaluation(Right):
    """Adds noise to what it predicts."""

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs: Tensor = model(batch["inputs"])
        return outputs + torch.randn_like(outputs)


class BareSchedule:
    """Only steps."""

    def step(self) -> None:
        """Do nothing."""


class NoStateOfSchedule(Right):
    """Its schedule has no state_dict."""

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        return BareSchedule()


class Ranged(Right):
    """torchmetrics merges its states of two shards, and of three none."""

    def metrics(self) -> Mapping[str, Metric]:
        return {"nrmse": torchmetrics.NormalizedRootMeanSquaredError(normalization="range")}

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        metric.update(outputs[:, 0].sigmoid(), batch["targets"].float())


class Growing(nn.Module):
    """Keeps the rows that it has seen, and a cache of what only depends on their number."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.register_buffer("seen", torch.zeros(0, 8))
        self.register_buffer("cache", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.keeps and not self.training:
            self.seen = torch.cat([self.seen, x.detach()])
        if not self.training and len(self.cache) < len(x):
            self.cache = torch.arange(len(x)).float()
        return x


class KeepsRows(Right):
    """Its evaluation adds rows to a buffer."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), Growing(keeps=True), nn.Linear(8, 1))


class GrowingCache(Right):
    """Right: its cache is not saved, and made anew."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), Growing(keeps=False), nn.Linear(8, 1))
