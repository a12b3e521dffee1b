"""A search by stock Ray Tune over stock Ray Train, as Ray's documentation writes it.

The file is a script: each trial starts a `TorchTrainer`, whose reports a callback hands on to Tune.
The benchmark of training functions starts it, and has evertrain search with the same function of
the same file. With `bare` in its argument the trials are functions of Tune's own, without Ray
Train.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback


def train_func(config: dict[str, Any]) -> None:
    """A few reports of a small folder."""
    for number in range(config["reports"]):
        with folder_of(number) as folder:
            checkpoint = train.Checkpoint.from_directory(folder)
            train.report({"loss": loss_of(config, number)}, checkpoint=checkpoint)


def bare_func(config: dict[str, Any]) -> None:
    """The same reports, to Tune itself."""
    for number in range(config["reports"]):
        with folder_of(number) as folder:
            checkpoint = tune.Checkpoint.from_directory(folder)
            tune.report({"loss": loss_of(config, number)}, checkpoint=checkpoint)


def folder_of(number: int) -> tempfile.TemporaryDirectory[str]:
    """A folder with weights."""
    folder = tempfile.TemporaryDirectory()
    torch.save({"weight": torch.full((1000,), float(number))}, Path(folder.name, "model.pt"))
    return folder


def loss_of(config: dict[str, Any], number: int) -> float:
    """What is reported."""
    return float(config["rate"]) / (number + 1)


def train_driver(config: dict[str, Any]) -> None:
    """One trial."""
    trainer = TorchTrainer(
        train_func,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(
            name=f"trial-{tune.get_context().get_trial_id()}",
            storage_path=config["storage"],
            callbacks=[TuneReportCallback()],
        ),
    )
    trainer.fit()


def space_of(told: dict[str, Any]) -> dict[str, Any]:
    """What is searched."""
    rates = [0.01 * (number + 1) for number in range(told["trials"])]
    return {"rate": tune.grid_search(rates), "reports": told["reports"]}


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    ray.init(num_cpus=len(os.sched_getaffinity(0)), include_dashboard=False, log_to_driver=False)
    # What a trial trains with is beside it: Ray Train reserves that itself.
    over_trainer = tune.with_resources(train_driver, {"CPU": 0.01})
    tuner = tune.Tuner(
        bare_func if told["bare"] else over_trainer,
        param_space=space_of(told) | {"storage": told["storage"]},
        tune_config=tune.TuneConfig(max_concurrent_trials=len(os.sched_getaffinity(0))),
        run_config=tune.RunConfig(name="search", storage_path=told["storage"], verbose=0),
    )
    results = tuner.fit()
    assert not results.errors, results.errors
    assert len(results) == told["trials"]
    ray.shutdown()
