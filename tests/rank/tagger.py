"""A workload with what tables and images lack: words, tuples, lengths, two optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchmetrics
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import Metric

from train_core import (
    Batch,
    Columns,
    CombinedOptimizer,
    Dataset,
    Settings,
    Split,
    Stream,
    Workload,
    balanced_order,
)
from train_core.policy.samples.randomness import SampleRandom

PADDING = -100
WORDS = [f"word{number}" for number in range(20)]


class TaggerSettings(Settings):
    num_train: int = 50
    num_empty: int = Field(default=0, description="So many of these have no word with a tag.")
    balances: bool = True
    is_plain: bool = Field(default=False, description="One SGD, of which a step is its gradient.")


class Sentences(torch.utils.data.Dataset[tuple[list[str], list[int]]]):
    """Sentences with a tag for each word, as tuples."""

    def __init__(self, split: str, num_samples: int, num_empty: int) -> None:
        rng = np.random.Generator(np.random.Philox(["train", "validation", "test"].index(split)))
        self.samples: list[tuple[list[str], list[int]]] = []
        for number in range(num_samples):
            words = rng.choice(WORDS, size=rng.integers(1, 9)).tolist()
            tags = [int(word.removeprefix("word")) % 3 for word in words]
            self.samples.append((words, [PADDING] * len(tags) if number < num_empty else tags))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[list[str], list[int]]:
        return self.samples[index]


class Tagger(Workload[TaggerSettings]):
    """Says which of three tags each word has."""

    Settings = TaggerSettings
    target_columns = ("tags",)
    monitor = "validation/loss"
    monitor_order = "min"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(len(self.fitted["vocabulary"]) + 1, 8), nn.Linear(8, 3))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.settings.is_plain:
            return torch.optim.SGD(model.parameters(), lr=1.0)
        embedding, head = model.children()
        return CombinedOptimizer(
            torch.optim.AdamW(embedding.parameters(), lr=0.01),
            torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9),
        )

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        if self.settings.is_plain:
            return None
        return ReduceLROnPlateau(optimizer, mode="min", patience=0, threshold=0.5)

    def dataset(self, split: Split) -> Dataset:
        if split != "train":
            return Sentences(split, 23, 0)
        return Sentences(split, self.settings.num_train, self.settings.num_empty)

    def collate(self, samples: Sequence[Any]) -> Columns:
        columns = {"words": np.empty(len(samples), object), "tags": np.empty(len(samples), object)}
        for row, (words, tags) in enumerate(samples):
            columns["words"][row], columns["tags"][row] = words, tags
        return columns

    def fit(self, train: Dataset | Stream) -> dict[str, Any]:
        assert isinstance(train, Sentences)
        # A set has another order in each process.
        return {"vocabulary": list({word for words, _ in train.samples for word in words})}

    def order(self, train: Dataset, random: np.random.Generator) -> npt.NDArray[np.int64]:
        if not self.settings.balances:
            return super().order(train, random)
        assert isinstance(train, Sentences)
        return balanced_order([tags[0] for _, tags in train.samples], random)

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        numbers = {word: number for number, word in enumerate(self.fitted["vocabulary"], start=1)}
        words = [torch.tensor([numbers.get(w, 0) for w in words]) for words in columns["words"]]
        batch = {"inputs": pad_sequence(words, batch_first=True)}
        if "tags" in columns:
            tags = [torch.tensor(list(tags)) for tags in columns["tags"]]
            batch["targets"] = pad_sequence(tags, batch_first=True, padding_value=PADDING)
        return batch

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(
            outputs.flatten(0, 1), batch["targets"].flatten(), ignore_index=PADDING
        )

    def weight(self, batch: Batch) -> Tensor:
        return (batch["targets"] != PADDING).sum()

    def metrics(self) -> Mapping[str, Metric]:
        return {
            "accuracy": torchmetrics.classification.MulticlassAccuracy(
                3, average="micro", ignore_index=PADDING
            )
        }

    def update_metric(self, metric: Metric, outputs: Tensor, batch: Batch, name: str = "") -> None:
        metric.update(outputs.flatten(0, 1), batch["targets"].flatten())

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"prediction": outputs[:, 0].argmax(-1)}


class ByAccuracy(Tagger):
    """Its rates follow the accuracy, by which its best checkpoint is chosen."""

    monitor = "validation/accuracy"
    monitor_order = "max"

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        return ReduceLROnPlateau(optimizer, mode="max")


class Negative(Tagger):
    """Its weights make no sense."""

    def weight(self, batch: Batch) -> float:
        return -1.0


class Short(Tagger):
    """Its order has too few samples."""

    def order(self, train: Dataset, random: np.random.Generator) -> npt.NDArray[np.int64]:
        return np.arange(len(train) - 1)


class Beyond(Tagger):
    """Its order has a sample that there is not."""

    def order(self, train: Dataset, random: np.random.Generator) -> npt.NDArray[np.int64]:
        return np.arange(len(train)) + 1
