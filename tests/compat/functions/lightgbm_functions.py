"""A function of LightGBM as Ray's page on it has it, which reads Ray Data and resumes."""

from __future__ import annotations

from typing import Any

import lightgbm
import ray.data
import ray.train
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params

ROUNDS = 6


def boost(config: dict[str, Any]) -> None:
    """Adds trees to those of the newest checkpoint; saves every second one."""
    checkpoint = ray.train.get_checkpoint()
    model = RayTrainReportCallback.get_model(checkpoint) if checkpoint else None
    done = model.current_iteration() if model else 0

    def table(name: str) -> lightgbm.Dataset:
        rows = ray.train.get_dataset_shard(name).materialize().to_pandas().astype("float64")
        return lightgbm.Dataset(rows.drop("y", axis=1), label=rows["y"])

    found = lightgbm.train(
        {
            "objective": "regression",
            "min_data_in_leaf": 1,
            "min_data_in_bin": 1,
            "verbose": -1,
            "tree_learner": "data_parallel",
            "pre_partition": True,
            **get_network_params(),
        },
        table("train"),
        valid_sets=[table("validation")],
        valid_names=["validation"],
        num_boost_round=(ROUNDS if checkpoint else config["fails_at"]) - done,
        callbacks=[RayTrainReportCallback(frequency=2, checkpoint_at_end=False)],
        init_model=model,
    )
    if not checkpoint:
        raise RuntimeError("Intentional error to showcase restoration!")
    assert found.current_iteration() == ROUNDS


def trainer() -> LightGBMTrainer:
    """Two workers, and room for Ray Data on two CPUs. The first attempt fails."""
    rows = [{"x": x, "y": x * x} for x in range(64)]
    return LightGBMTrainer(
        boost,
        train_loop_config={"fails_at": 4},
        datasets={
            "train": ray.data.from_items(rows[::2]),
            "validation": ray.data.from_items(rows[1::2]),
        },
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=1)),
    )
