"""Three nightly deployments on MNIST that end in a first champion, a refusal and a promotion.

    python -m tests.flows.deployment.champion_nights FOLDER

leaves the runs, MLflow's and Prefect's databases in FOLDER, to be looked at; champion_pictures.py
keeps pictures of their pages.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import Server, Site, own_prefect_file
from tests.workloads.idx_files import format_idx
from train_core.workloads.idx import read_idx

MODEL = "MnistResNet18"
TESTED = 2000
"""MNIST's first test images, the same every night."""


@dataclass(frozen=True)
class Night:
    """The training images that are there when it begins."""

    run: str
    mnist: int
    fashion: int
    """Images of Fashion-MNIST with their labels, from which nothing of MNIST can be learnt."""


NIGHTS = (
    Night("monday", mnist=3000, fashion=0),
    Night("tuesday", mnist=1000, fashion=2000),
    Night("wednesday", mnist=12000, fashion=0),
)


def deliver(data: Path, folder: Path, night: Night) -> None:
    """Write the files of a night, over those of the night before."""
    folder.mkdir(exist_ok=True)
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    for kind in kinds:
        mnist = read_idx(f"{data}/mnist", f"train-{kind}")[: night.mnist]
        fashion = read_idx(f"{data}/fashion-mnist", f"train-{kind}")[: night.fashion]
        tested = read_idx(f"{data}/mnist", f"t10k-{kind}")[:TESTED]
        (folder / f"train-{kind}").write_bytes(format_idx(np.concatenate([mnist, fashion])))
        (folder / f"t10k-{kind}").write_bytes(format_idx(tested))


def run_nights(home: Path, data: Path, api: str) -> Site:
    """Deploy at the server, and run the three nights one after the other."""
    parameters = {
        "workload": "train_core.workloads.mnist:MnistResNet18",
        "settings": {"data": str(home / "data"), "validation_samples": 500},
        "epochs": 2,
        "batch_size": 64,
        "num_workers": 1,
        "gate_minimum": 0.5,
    }
    file = own_prefect_file(home / "own", **parameters)
    site = Site(home, isolated(home), api)
    site.deploy(file=file)
    with site.worker():
        for night in NIGHTS:
            deliver(data, home / "data", night)
            # Without a name a run is named after the workload and the time.
            named = f"parameters={json.dumps(parameters | {'run': night.run})}"
            site.prefect("deployment", "run", "retrain/retrain", "--watch", "--param", named)
    return site


def main() -> None:
    home = Path(sys.argv[1]).absolute()
    home.mkdir(parents=True)
    with Server(home, isolated(home)) as server:
        run_nights(home, Path(os.environ["EVERTRAIN_DATA"]), server.url)


if __name__ == "__main__":
    main()
