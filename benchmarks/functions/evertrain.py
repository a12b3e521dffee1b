"""The stock script's training function, run by `train_core.fit` at its defaults."""

from __future__ import annotations

import json
import sys

from train_core import TrainConfig, fit

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    config = TrainConfig(
        train_fn="benchmarks.peers.ray_reporting:train_func",
        train_loop_config=told,
        num_workers=2,
        gpus_per_worker=0,
    )
    fit(config, storage=told["storage"], run="evertrain")
