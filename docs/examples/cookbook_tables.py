"""Short workloads on tables and series: categories, gaps, time, folds, rare classes.

`python cookbook_tables.py` trains five folds and shows their mean accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from cookbook import Recipe, RecipeSettings, generator_of, places, rows_of
from pydantic import Field
from sklearn.datasets import load_wine, make_classification
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.classification import BinaryAveragePrecision, MulticlassAccuracy

from train_core import (
    ArrayDataset,
    Batch,
    Columns,
    Dataset,
    SampleRandom,
    Split,
    Stream,
    TrainConfig,
    balanced_order,
    fit,
    open_run,
    read_columns,
)

CATEGORIES = ("district", "kind")


class Embedded(nn.Module):
    """A vector for each category, beside a number."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.vectors = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
        self.layers = nn.Sequential(nn.Linear(1 + 4 * len(sizes), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, number: Tensor, categories: Tensor) -> Tensor:
        """A number for each row."""
        found = [vectors(categories[:, i]) for i, vectors in enumerate(self.vectors)]
        outputs: Tensor = self.layers(torch.cat([number[:, None], *found], dim=1))
        return outputs.squeeze(1)


class Flats(Recipe):
    """The price of a flat, of its district, its kind and its area."""

    target_columns = ("price",)

    def dataset(self, split: Split) -> ArrayDataset:
        """Invented flats; in validation there is a district that training does not have."""
        random = generator_of(split)
        names = ["Mitte", "Nord", "West"] + ["Hafen"] * (split != "train")
        district = random.choice(np.array(names, object), 200)
        kind = random.choice(np.array(["loft", "studio", None], object), 200)
        area = random.uniform(20, 120, 200)
        price = area * (2 + (district == "Mitte") + (kind == "loft"))
        return ArrayDataset(district=district, kind=kind, area=area, price=price)

    def fit(self, train: Dataset | Stream) -> dict[str, Any]:
        """The categories that training has; None, for a missing one, is not among them."""
        assert isinstance(train, ArrayDataset)
        return {name: sorted(set(train.columns[name]) - {None}) for name in CATEGORIES}

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """Each category's place, 0 if it is unknown: in training one in 20 is made unknown."""
        found = [places(columns[name], self.fitted[name]) for name in CATEGORIES]
        categories = torch.stack(found, dim=1)
        if random is not None:
            is_hidden = torch.from_numpy(random.uniform(len(CATEGORIES)) < 0.05)
            categories = categories.masked_fill(is_hidden, 0)
        batch = {"area": torch.tensor(columns["area"] / 100).float(), "categories": categories}
        if "price" in columns:
            batch["targets"] = torch.tensor(columns["price"] / 100).float()
        return batch

    def model(self) -> nn.Module:
        """With a vector for what is unknown, too."""
        return Embedded([len(self.fitted[name]) + 1 for name in CATEGORIES])

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """The prices, in hundreds."""
        outputs: Tensor = model(batch["area"], batch["categories"])
        return outputs

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """The prices."""
        return {"prediction": outputs * 100}


PAST, FUTURE = 24, 6


class Forecast(Recipe):
    """The next 6 values of a series, from the last 24."""

    target_columns = ("future",)

    def dataset(self, split: Split) -> ArrayDataset:
        """Windows by the time of their future: no split has a future that an earlier one has."""
        hours = np.arange(1_000)
        noise = np.random.default_rng(0).normal(0, 2, len(hours))
        series = 50 + hours / 50 + 10 * np.sin(hours * 2 * np.pi / 24) + noise
        begin, end = {"train": (0, 600), "validation": (600, 800), "test": (800, 1_000)}[split]
        # The past of the first windows may lie in the split before: that is known by then.
        part = series[max(0, begin - PAST) : end]
        windows = np.lib.stride_tricks.sliding_window_view(part, PAST + FUTURE)
        return ArrayDataset(past=windows[:, :PAST], future=windows[:, PAST:])

    def fit(self, train: Dataset | Stream) -> dict[str, float]:
        """The mean and the deviation of the training's part of the series."""
        assert isinstance(train, ArrayDataset)
        values = train.columns["past"]
        return {"mean": float(values.mean()), "deviation": float(values.std())}

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """Scaled windows."""
        names = {"past": "inputs", "future": "targets"}
        return {
            names[name]: torch.from_numpy(
                (columns[name] - self.fitted["mean"]) / self.fitted["deviation"]
            ).float()
            for name in names
            if name in columns
        }

    def model(self) -> nn.Module:
        """All 6 values at once."""
        return nn.Linear(PAST, FUTURE)

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """Six values for each row, in the series' own unit."""
        return {"prediction": outputs * self.fitted["deviation"] + self.fitted["mean"]}


class MissingTargets(Recipe):
    """Three values of a blood sample, of which a laboratory has seldom measured all."""

    target_columns = ("values",)

    def dataset(self, split: Split) -> ArrayDataset:
        """A third of the values is missing, and in some rows all three."""
        random = generator_of(split)
        inputs = random.normal(0, 1, (200, 5))
        values = inputs[:, :3] + inputs[:, 2:] ** 2
        values[random.random(values.shape) < 0.33] = np.nan
        return ArrayDataset(inputs=inputs, values=values)

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """The targets with NaN where nothing is known."""
        batch = {"inputs": torch.from_numpy(columns["inputs"]).float()}
        if "values" in columns:
            batch["targets"] = torch.from_numpy(columns["values"]).float()
        return batch

    def model(self) -> nn.Module:
        """One network for all three."""
        return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean squared error over the values that are known."""
        is_known = ~batch["targets"].isnan()
        return functional.mse_loss(outputs[is_known], batch["targets"][is_known])

    def weight(self, batch: Batch) -> Tensor:
        """How many values are known: it may be none."""
        return (~batch["targets"].isnan()).sum()


class SalesSettings(RecipeSettings):
    """What may be set from outside, with its limits."""

    sales: str = Field(default="sales", description="A folder with Parquet files.")
    validation_from: date = Field(default=date(2026, 7, 1), description="Training ends before it.")
    test_from: date = Field(default=date(2026, 9, 1), description="Validation ends before it.")


class Sales(Recipe):
    """How much a shop sells on a day, learnt from the days before."""

    Settings = SalesSettings
    settings: SalesSettings
    target_columns = ("sold",)

    def sources(self) -> Mapping[str, str]:
        """All files of the folder, to which one comes every night."""
        return {"sales": self.settings.sales}

    def dataset(self, split: Split) -> ArrayDataset:
        """The rows of a time: a new file changes no row's split."""
        sales = read_columns(self.files("sales"))
        cuts = np.array([self.settings.validation_from, self.settings.test_from], "datetime64[D]")
        time = np.searchsorted(cuts, sales["day"].astype("datetime64[D]"), side="right")
        is_in = time == {"train": 0, "validation": 1, "test": 2}[split]
        return ArrayDataset(**{name: column[is_in] for name, column in sales.items()})

    def fit(self, train: Dataset | Stream) -> dict[str, Any]:
        """The shops, and what each of them sold on a training day in the mean."""
        assert isinstance(train, ArrayDataset)
        shop, sold = train.columns["shop"], train.columns["sold"]
        shops = sorted(set(shop))
        # The first is that of a shop which training does not have.
        return {"shops": shops, "means": [sold.mean(), *(sold[shop == s].mean() for s in shops)]}

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """The shop's mean in the past, the day of the week, and whether there is an offer."""
        means = torch.tensor(self.fitted["means"])[places(columns["shop"], self.fitted["shops"])]
        # The first day of 1970 was a Thursday.
        weekday = torch.from_numpy(columns["day"].astype("datetime64[D]").astype(np.int64) % 7)
        offer = torch.from_numpy(columns["offer"])
        numbers = torch.stack([means / self.fitted["means"][0], offer], dim=1)
        batch = {"inputs": torch.cat([numbers, functional.one_hot(weekday, 7)], dim=1).float()}
        if "sold" in columns:
            batch["targets"] = torch.from_numpy(columns["sold"] / self.fitted["means"][0]).float()
        return batch

    def model(self) -> nn.Module:
        """A small network."""
        return nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """How much is sold."""
        return {"prediction": outputs * self.fitted["means"][0]}


class FoldSettings(RecipeSettings):
    """What may be set from outside, with its limits."""

    fold: int = Field(default=0, ge=0, lt=5, description="Which fifth is held out.")


class Fold(Recipe):
    """The sort of a wine: trained on four fifths of a table, validated on the fifth one."""

    Settings = FoldSettings
    settings: FoldSettings
    class_names = ("Barolo", "Grignolino", "Barbera")

    def dataset(self, split: Split) -> ArrayDataset:
        """Each row is held out in one fold of five."""
        values, labels = load_wine(return_X_y=True)
        folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(values, labels))
        train, held_out = folds[self.settings.fold]
        rows = train if split == "train" else held_out
        return ArrayDataset(values=values[rows], target=labels[rows])

    def fit(self, train: Dataset | Stream) -> dict[str, Any]:
        """Each fold has a scaler of its own: the one of all rows would have seen the fifth."""
        assert isinstance(train, ArrayDataset)
        values = train.columns["values"]
        return {"mean": values.mean(axis=0), "deviation": values.std(axis=0)}

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """Scaled measurements."""
        values = (columns["values"] - self.fitted["mean"]) / self.fitted["deviation"]
        batch = {"inputs": torch.from_numpy(values).float()}
        if "target" in columns:
            batch["targets"] = torch.from_numpy(columns["target"])
        return batch

    def model(self) -> nn.Module:
        """A linear model."""
        return nn.Linear(13, len(self.class_names))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean cross-entropy."""
        return functional.cross_entropy(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        """The share of the rows whose class is right."""
        return {"accuracy": MulticlassAccuracy(num_classes=3, average="micro")}

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """The likeliest class and all probabilities."""
        probabilities = outputs.softmax(dim=1)
        return {"prediction": probabilities.argmax(dim=1), "probabilities": probabilities}


def cross_validated(storage: str, epochs: int) -> float:
    """The mean accuracy of five models on the fifth that each has not seen."""
    found = []
    for fold in range(5):
        config = TrainConfig(
            workload="cookbook_tables:Fold", settings={"fold": fold}, epochs=epochs, batch_size=16
        )
        fit(config, storage=storage, run=f"fold-{fold}")
        last = open_run(storage, f"fold-{fold}").latest()
        found.append(last.metrics["validation/accuracy"])
    return float(np.mean(found))


class RareClass(Recipe):
    """Two classes, of which one has a twentieth of the rows."""

    class_names = ("usual", "rare")
    monitor = "validation/average_precision"
    monitor_order = "max"

    def dataset(self, split: Split) -> ArrayDataset:
        """All splits have the classes as they are."""
        inputs, labels = make_classification(1_000, 8, weights=[0.95], random_state=0)
        rows = rows_of(split, len(labels))
        return ArrayDataset(inputs=inputs[rows], target=labels[rows])

    def order(self, train: Dataset, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Of both classes about as many samples."""
        assert isinstance(train, ArrayDataset)
        return balanced_order(train.columns["target"], random)

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """The measurements."""
        batch = {"inputs": torch.from_numpy(columns["inputs"]).float()}
        if "target" in columns:
            batch["targets"] = torch.from_numpy(columns["target"])
        return batch

    def model(self) -> nn.Module:
        """A linear model."""
        return nn.Linear(8, 2)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean cross-entropy."""
        return functional.cross_entropy(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        """How well the rare class is found; a model that never says it would have 0.05."""
        return {"average_precision": BinaryAveragePrecision()}

    def update_metric(self, metric: Metric, outputs: Tensor, batch: Batch, name: str = "") -> None:
        """Of the rare class's probability."""
        metric.update(outputs.softmax(dim=1)[:, 1], batch["targets"])

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """The likelier class and both probabilities."""
        probabilities = outputs.softmax(dim=1)
        return {"prediction": probabilities.argmax(dim=1), "probabilities": probabilities}


def write_sales(folder: Path) -> None:
    """Write a file of invented sales for each month of 2026 up to October."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for month in range(1, 11):
        day, shop = np.divmod(np.arange(28 * 4), 4)
        offer = random.random(len(day)) < 0.2
        sold = 20 * (1 + shop) * (1 + offer) * (1 + (day % 7 > 4)) + random.normal(0, 5, len(day))
        table = {
            "day": np.datetime64(f"2026-{month:02}-01") + day,
            "shop": np.array(["A", "B", "C", "D"], object)[shop],
            "offer": offer,
            "sold": sold,
        }
        pq.write_table(pa.table(table), folder / f"2026-{month:02}.parquet")


if __name__ == "__main__":
    print(cross_validated("runs", epochs=10))
