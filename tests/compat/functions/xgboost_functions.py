"""A function of XGBoost as Ray's page on it has it, which reads Ray Data and resumes."""

from __future__ import annotations

from typing import Any

import ray.data
import ray.train
import xgboost
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer

ROUNDS = 6


def boost(config: dict[str, Any]) -> None:
    """Adds trees to those of the newest checkpoint; saves every second one."""
    checkpoint = ray.train.get_checkpoint()
    model = RayTrainReportCallback.get_model(checkpoint) if checkpoint else None
    done = model.num_boosted_rounds() if model else 0

    def matrix(name: str) -> xgboost.DMatrix:
        table = ray.train.get_dataset_shard(name).materialize().to_pandas()
        return xgboost.DMatrix(table.drop("y", axis=1), label=table["y"])

    found = xgboost.train(
        {"tree_method": "hist", "objective": "reg:squarederror", "max_depth": 2},
        dtrain=matrix("train"),
        evals=[(matrix("validation"), "validation")],
        num_boost_round=(ROUNDS if checkpoint else config["fails_at"]) - done,
        callbacks=[RayTrainReportCallback(frequency=2, checkpoint_at_end=False)],
        xgb_model=model,
    )
    if not checkpoint:
        raise RuntimeError("Intentional error to showcase restoration!")
    assert found.num_boosted_rounds() == ROUNDS


def trainer() -> XGBoostTrainer:
    """Two workers, and room for Ray Data on two CPUs. The first attempt fails."""
    rows = [{"x": x, "y": x * x} for x in range(64)]
    return XGBoostTrainer(
        boost,
        train_loop_config={"fails_at": 4},
        datasets={
            "train": ray.data.from_items(rows[::2]),
            "validation": ray.data.from_items(rows[1::2]),
        },
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=1)),
    )
