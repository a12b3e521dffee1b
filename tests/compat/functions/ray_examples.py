"""Ray's own examples whose data would be downloaded, with data of the same form made here."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray.data
from ray.data import Dataset
from ray.train import DataConfig, ScalingConfig
from ray.train.examples.pytorch.torch_regression_example import train_func
from ray.train.torch import TorchTrainer


def get_datasets(split: float = 0.7) -> tuple[Dataset, Dataset]:
    """The example's function; its first line was `ray.data.read_csv("s3://…/regression.csv")`."""
    dataset = ray.data.range(60)

    def combine_x(batch: dict[str, Any]) -> dict[str, Any]:
        x = np.random.default_rng(0).normal(size=(len(batch["id"]), 100))
        return {"x": x, "y": x.sum(axis=1, keepdims=True)}

    dataset = dataset.map_batches(combine_x)
    train_dataset, validation_dataset = dataset.repartition(num_blocks=4).train_test_split(
        split, shuffle=True
    )
    return train_dataset, validation_dataset


def regression_trainer() -> TorchTrainer:
    """The example's trainer, up to its `.fit()`."""
    train_dataset, val_dataset = get_datasets()
    config = {"lr": 1e-2, "hidden_size": 20, "batch_size": 4, "epochs": 3}

    return TorchTrainer(
        train_loop_per_worker=train_func,
        train_loop_config=config,
        # Had no `resources_per_worker`: Ray Data needs a CPU, too, and there may be two only.
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        datasets={"train": train_dataset, "validation": val_dataset},
        dataset_config=DataConfig(datasets_to_split=["train"]),
    )
