"""A workload on a table that may lack values, and a run of it that is trained in this process."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torchmetrics
from torch import Tensor, nn

from tests.rank.alone import create, run
from train_core import ArrayDataset, Batch, Columns, SampleRandom, Settings, Split, Workload
from train_core.config import TrainConfig
from train_core.datasets.forms import forms_in
from train_core.datasets.protocols import SPLITS
from train_core.datasets.recorded import describe_data
from train_core.datasets.tables import columns_of
from train_core.loading import load_workload
from train_core.rank.data.inputs import open_input
from train_core.rank.data.recorded_workload import load_recorded
from train_core.requests import KeptColumns
from train_core.scoring import predict
from train_core.storage.run_folder import RunFolder
from train_core.workload import load_split

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


def trained(folder: RunFolder, name: str = "Houses", **config: object) -> RunFolder:
    """The folder, with a run of one epoch in it."""
    asked: dict[str, Any] = {"batch_size": 32, "eval_batch_size": 16, **config}
    training = TrainConfig(workload=f"{__name__}:{name}", epochs=1, **asked)
    workload = load_workload(training.workload, {})
    datasets = {}
    for split in SPLITS:
        data = load_split(workload, split)
        datasets[split] = describe_data(data) | {"columns": forms_in(data)}
    create(folder, training, datasets=datasets)
    run(folder, workload=training.workload, epochs=1, **config)
    return folder


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


def scored(folder: RunFolder, source: Path, batch: int = 16, **keeps: Any) -> Any:
    """The only output file's table, and what is told of it."""
    config = folder.record().config
    workload = load_recorded(folder, config)
    found = open_input(str(source), workload, KeptColumns(**keeps), with_digests=True)
    ranges = [range(i, min(i + batch, found.num_rows)) for i in range(0, found.num_rows, batch)]
    (newest,) = folder.checkpoints()[-1:]
    key = f"predictions/{source.name}.parquet"
    told = predict.score_one_part(folder.url, config, str(newest.name), found, ranges, key)
    return pq.ParquetFile(folder.store.path(key)), told
