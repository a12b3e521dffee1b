"""Workloads on a table that may lack values. They import no other module of the tests."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import torch
import torchmetrics
from torch import Tensor, nn

from train_core import ArrayDataset, Batch, Columns, SampleRandom, Settings, Split, Workload
from train_core.datasets.tables import columns_of

NUM_SAMPLES = 32


class Houses(Workload[Settings]):
    """Cheap or dear by size and age. A missing value stays NaN, for the model to see."""

    class_names = ("cheap", "dear")

    def dataset(self, split: Split) -> ArrayDataset:
        rng = np.random.default_rng(0)
        size, age = rng.normal(size=(2, NUM_SAMPLES)).astype(np.float32)
        return ArrayDataset(size=size, age=age, label=(size > age).astype(np.int64))

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        values = np.stack([columns["size"], columns["age"]], 1).astype(np.float32)
        batch = {"inputs": torch.from_numpy(values)}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(columns["label"])
        return batch

    def model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch["targets"])

    def metrics(self) -> dict[str, torchmetrics.Metric]:
        return {"accuracy": torchmetrics.classification.MulticlassAccuracy(2)}

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"prediction": outputs.argmax(1), "probabilities": outputs.softmax(1)}


class Shops(Houses):
    """Will a customer leave? By columns of all the types that tables have, some of them missing."""

    class_names = ("stays", "leaves")

    def dataset(self, split: Split) -> ArrayDataset:
        return ArrayDataset(**columns_of(customers(NUM_SAMPLES)))

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        age = np.nan_to_num(columns["age"].astype(np.float32), nan=40.0)
        known = np.array([plan is not None for plan in columns["plan"]])
        letters = np.array([len(city or "") for city in columns["city"]])
        days = (columns["since"] - np.datetime64("2026-01-01")) / np.timedelta64(1, "D")
        visits = np.array([len(one) for one in columns["visits"]])
        price = np.array([float(one or 0) for one in columns["price"]])
        member = np.array([{None: 0.5, True: 1.0, False: 0.0}[one] for one in columns["member"]])
        seen = (columns["seen"] - np.datetime64("2026-09-01")) / np.timedelta64(1, "D")
        values = [age / 40, known, letters / 8, np.nan_to_num(days) / 100, visits / 3, price / 10]
        values += [member, np.nan_to_num(seen) / 100]
        batch = {"inputs": torch.from_numpy(np.stack(values, 1).astype(np.float32))}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(columns["label"].astype(np.int64))
        return batch

    def model(self) -> nn.Module:
        return nn.Linear(8, 2)


def customers(num_rows: int) -> pa.Table:
    """Rows of all types; of each column but the label some are missing."""
    days = [date(2026, 1 + row % 12, 1) for row in range(num_rows)]
    rows = range(num_rows)
    return pa.table(
        {
            "age": pa.array([None if row % 5 == 1 else 20 + row for row in rows], pa.int32()),
            "plan": pa.array([[None, "free", "paid"][row % 3] for row in rows]).dictionary_encode(),
            "city": pa.array([None if row % 4 == 3 else "Jena"[: row % 4 + 1] for row in rows]),
            "since": pa.array([None if row % 7 == 2 else day for row, day in enumerate(days)]),
            "visits": pa.array([list(range(row % 4)) for row in rows], pa.list_(pa.int64())),
            "price": pa.array([None if row % 6 == 1 else Decimal(row) / 4 for row in rows]),
            "member": pa.array([[None, True, False][row % 3] for row in rows]),
            "seen": pa.array(
                [None if row % 8 == 5 else datetime(2026, 9, 1, row % 24, 17) for row in rows],
                pa.timestamp("us"),
            ),
            "label": pa.array([row % 2 for row in rows]),
        }
    )
