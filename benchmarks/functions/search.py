"""The search of the stock script, by evertrain's trainable: each trial is a run."""

from __future__ import annotations

import json
import os
import sys

import ray
from ray import tune

from benchmarks.peers.tune_stock import space_of
from train_core.tune import trainable

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    ray.init(num_cpus=len(os.sched_getaffinity(0)), include_dashboard=False, log_to_driver=False)
    space = {f"train_loop_config.{name}": value for name, value in space_of(told).items()}
    tuner = tune.Tuner(
        trainable(
            train_fn="benchmarks.peers.tune_stock:train_func",
            storage=f"{told['storage']}/runs",
        ),
        param_space=space,
        run_config=tune.RunConfig(name="search", storage_path=told["storage"], verbose=0),
    )
    results = tuner.fit()
    assert not results.errors, results.errors
    assert len(results) == told["trials"]
    ray.shutdown()
