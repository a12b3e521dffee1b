"""Which customers will leave? A table with ids, categories, dates and gaps, where few leave.

`python churn.py customers 20000` writes such a table of invented customers, to try the example.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.classification import BinaryAveragePrecision, BinaryRecall

from train_core import (
    ArrayDataset,
    Batch,
    Columns,
    Dataset,
    SampleRandom,
    Settings,
    Split,
    Stream,
    Workload,
    balanced_order,
    read_columns,
)

CATEGORIES = ("plan", "country")
NUMBERS = ("age", "monthly_fee", "days_since_signup")
SHARES: Mapping[Split, range] = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}


class ChurnSettings(Settings):
    """What may be set from outside, with its limits."""

    customers: str = Field(default="customers", description="A folder with Parquet files.")
    learning_rate: float = Field(default=3e-3, gt=0, description="AdamW's learning rate.")


class Network(nn.Module):
    """Numbers, and a vector for each category that is learnt."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.vectors = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
        width = 2 * len(NUMBERS) + 4 * len(sizes)
        self.layers = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """The logits of both classes."""
        found = [vectors(categories[:, i]) for i, vectors in enumerate(self.vectors)]
        outputs: Tensor = self.layers(torch.cat([numbers, *found], dim=1))
        return outputs


class Churn(Workload[ChurnSettings]):
    """Whether a customer leaves within the month."""

    Settings = ChurnSettings
    target_columns = ("left",)
    class_names = ("stays", "leaves")
    monitor = "validation/average_precision"

    def sources(self) -> Mapping[str, str]:
        """All files of the folder, to which one comes every night."""
        return {"customers": self.settings.customers}

    def dataset(self, split: Split) -> ArrayDataset:
        """80, 10 and 10 % of the customers; a customer stays in his split when files come."""
        columns = read_columns(self.files("customers"))
        rows = np.isin(columns["customer_id"] % 10, SHARES[split])
        return ArrayDataset(**{name: array[rows] for name, array in columns.items()})

    def fit(self, train: Dataset | Stream) -> dict[str, Any]:
        """The categories that there are, and the mean and deviation of each number."""
        assert isinstance(train, ArrayDataset)
        numbers = self.numbers(train.columns)
        return {
            "categories": {
                name: sorted({value for value in train.columns[name] if value is not None})
                for name in CATEGORIES
            },
            "mean": np.nanmean(numbers, axis=0),
            "deviation": np.nanstd(numbers, axis=0) + 1e-6,
        }

    def order(self, train: Dataset, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Few leave: both classes come about as often."""
        assert isinstance(train, ArrayDataset)
        return balanced_order(train.columns["left"], random)

    def numbers(self, columns: Columns) -> npt.NDArray[np.float64]:
        """The numbers of each customer, NaN where they are missing; shape (N, 3)."""
        days = (columns["seen_on"] - columns["signed_up_on"]) / np.timedelta64(1, "D")
        return np.stack([columns["age"], columns["monthly_fee"], days], axis=1).astype(np.float64)

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """Scaled numbers, and which of them are missing; each category's place, 0 if unknown."""
        numbers = (self.numbers(columns) - self.fitted["mean"]) / self.fitted["deviation"]
        is_missing = np.isnan(numbers)
        values = np.concatenate([np.where(is_missing, 0, numbers), is_missing], axis=1)
        places = [
            [known.index(value) + 1 if value in known else 0 for value in columns[name]]
            for name, known in self.fitted["categories"].items()
        ]
        batch = {"numbers": torch.tensor(values).float(), "categories": torch.tensor(places).T}
        if "left" in columns:
            batch["targets"] = torch.from_numpy(columns["left"].astype(np.int64))
        return batch

    def model(self) -> nn.Module:
        """With a vector for what is unknown, too."""
        return Network([len(known) + 1 for known in self.fitted["categories"].values()])

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """The logits of both classes."""
        outputs: Tensor = model(batch["numbers"], batch["categories"])
        return outputs

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW for all parameters."""
        return torch.optim.AdamW(model.parameters(), lr=self.settings.learning_rate)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean cross-entropy."""
        return functional.cross_entropy(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        """How well those who leave are found."""
        return {"average_precision": BinaryAveragePrecision(), "recall": BinaryRecall()}

    def update_metric(self, metric: Metric, outputs: Tensor, batch: Batch, name: str = "") -> None:
        """Both take the probability of leaving."""
        metric.update(outputs.softmax(dim=1)[:, 1], batch["targets"])

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """The likelier class and both probabilities."""
        probabilities = outputs.softmax(dim=1)
        return {"prediction": probabilities.argmax(dim=1), "probabilities": probabilities}


def write_customers(file: Path, num_customers: int) -> None:
    """Write a table of invented customers, of whom about one in eight leaves."""
    random = np.random.default_rng(0)
    age = random.integers(18, 90, num_customers).astype(float)
    plan = random.choice(["basic", "family", "pro", None], num_customers, p=[0.5, 0.3, 0.15, 0.05])
    days = random.integers(1, 2000, num_customers)
    seen_on = pd.Timestamp("2026-11-01")
    risk = 1.5 * (plan == "basic") - days / 600 - (age - 50) / 40 - 1.5
    left = random.random(num_customers) < 1 / (1 + np.exp(-risk))
    age[random.random(num_customers) < 0.1] = np.nan
    table = pd.DataFrame(
        {
            "customer_id": np.arange(num_customers),
            "plan": plan,
            "country": random.choice(["DE", "FR", "NA", "PL"], num_customers),
            "age": age,
            "monthly_fee": random.choice([9.99, 14.99, 29.99], num_customers),
            "signed_up_on": seen_on - pd.to_timedelta(days, unit="D"),
            "seen_on": seen_on,
            "left": left,
        }
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    table.to_parquet(file)


if __name__ == "__main__":
    write_customers(Path(sys.argv[1], "monday.parquet"), int(sys.argv[2]))
