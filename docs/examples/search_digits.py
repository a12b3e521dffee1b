"""Searches for a learning rate with Ray Tune, and has the best trial go on as a pipeline."""

from __future__ import annotations

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from evertrain_flows.search import retrain_best
from train_core.tune import trainable

if __name__ == "__main__":
    tuner = tune.Tuner(
        trainable("train_core.workloads.digits:Digits", epochs=4, storage="runs"),
        param_space={"settings.learning_rate": tune.loguniform(1e-4, 1e-1)},
        tune_config=tune.TuneConfig(
            metric="validation/accuracy",
            mode="max",
            num_samples=4,
            scheduler=ASHAScheduler(max_t=4, grace_period=1),
        ),
        run_config=tune.RunConfig(name="rates"),
    )
    results = tuner.fit()
    report = retrain_best(results, registered_model="digits")
