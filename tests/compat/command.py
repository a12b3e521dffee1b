"""`evertrain retrain --train-fn` as a process of its own, to be watched and struck."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil

from flows.databases import create_tracking_database
from train_core.storage.run_folder import RunFolder

EPOCHS = 12
PAUSE_S = 0.3


class Command:
    """`evertrain retrain --train-fn`, as a process that can be killed and started again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = RunFolder(str(place / "runs"), "run")
        self.tracking_uri = f"sqlite:///{place}/mlflow.db"
        create_tracking_database(self.tracking_uri)
        self.process: subprocess.Popen[bytes] | None = None
        seed = random.randrange(2**32)
        # pytest shows it if the test fails.
        print(f"seed {seed}")  # noqa: T201
        self.rng = random.Random(seed)

    def start(self, **changes: object) -> None:
        """Start it, with other values of the function's own configuration."""
        config = json.dumps({"num_epochs": EPOCHS, "pause_s": PAUSE_S, **changes})
        with open(self.place / "log.txt", "a") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "flows.cli", "retrain", "--run", "run"),
                    *("--train-fn", "tests.compat.functions.plain:save_and_resume"),
                    *("--train-loop-config", config, "--num-workers", "2"),
                    *("--storage", self.folder.storage, "--tracking-uri", self.tracking_uri),
                    *("--monitor", "loss", "--monitor-order", "min", "--keep-last", str(EPOCHS)),
                    *("--grace-s", "5"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def descendants(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_for_reports(self, number: int) -> None:
        """Until so many reports were committed."""
        deadline = time.monotonic() + 120
        while True:
            assert self.process is not None
            assert self.process.poll() is None, (self.place / "log.txt").read_text()[-3000:]
            newest = self.folder.newest()
            if newest and newest.step >= number:
                return
            assert time.monotonic() < deadline, "no report"
            time.sleep(0.05)

    def end(self) -> int:
        assert self.process is not None
        return self.process.wait(240)

    def log(self) -> str:
        """What it has shown."""
        return (self.place / "log.txt").read_text()
