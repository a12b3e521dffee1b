"""`evertrain retrain` of a training function as a process of its own, to be watched and struck."""

from __future__ import annotations

import json
import os
import random
import subprocess
import uuid
from pathlib import Path

import psutil

from evertrain_flows.databases import create_tracking_database
from tests import commands
from tests.compat.attempts.kinds import EPOCHS, NUM_WORKERS, PAUSE_S, PLAIN, Kind
from tests.ranks.ray_processes import below
from tests.waiting import wait_for
from train_core.storage.run_folder import Commit, RunFolder

SEED = "EVERTRAIN_TEST_SEED"


class Command:
    """`evertrain retrain` of a function, as a process that can be killed and started again."""

    def __init__(self, place: Path, kind: Kind = PLAIN, grace_s: float = 5) -> None:
        self.place = place
        self.kind = kind
        self.grace_s = grace_s
        # Lightning's callback names a temporary folder after the run, and tests run side by side.
        self.folder = RunFolder(str(place / "runs"), f"run-{uuid.uuid4().hex[:8]}")
        self.tracking_uri = f"sqlite:///{place}/mlflow.db"
        create_tracking_database(self.tracking_uri)
        self.process: subprocess.Popen[bytes] | None = None
        seed = int(os.environ.get(SEED) or random.randrange(2**32))
        # pytest shows it if the test fails.
        print(f"{SEED}={seed} chooses the same moments again")  # noqa: T201
        self.rng = random.Random(seed)

    def start(self, **changes: object) -> None:
        """Start it, with other values of the function's own configuration."""
        command = [
            *(*commands.EVERTRAIN, "retrain", "--run", self.folder.name),
            *self._function(changes),
            *("--storage", self.folder.storage, "--tracking-uri", self.tracking_uri),
            *("--grace-s", str(self.grace_s)),
        ]
        self.process = commands.begin(command, self.place / "log.txt")

    def _function(self, changes: dict[str, object]) -> list[str]:
        """What names and configures the function; a factory configures it itself."""
        if self.kind.is_factory:
            return ["--trainer", self.kind.name]
        config = {self.kind.num_epochs: EPOCHS, "pause_s": PAUSE_S, **changes}
        return [
            *("--train-fn", self.kind.name, "--train-loop-config", json.dumps(config)),
            *("--num-workers", str(NUM_WORKERS), "--keep-last", str(EPOCHS)),
            *("--monitor", self.kind.metric, "--monitor-order", "min"),
        ]

    def descendants(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def processes_of(self, actor: str) -> list[psutil.Process]:
        """The processes of its actors of Ray that are called so."""
        assert self.process is not None
        return below(psutil.Process(self.process.pid), actor)

    def workers(self) -> list[psutil.Process]:
        """Those in which the function runs."""
        return self.processes_of("RayTrainWorker")

    def wait_for_reports(self, number: int, *, after_attempt: int = 0) -> Commit:
        """The newest checkpoint, when there are so many, and it is of a later attempt."""

        def found() -> Commit | None:
            newest = self.folder.newest()
            if newest and newest.step >= number and newest.attempt > after_attempt:
                return newest
            return None

        assert self.process is not None
        return wait_for(found, 120, lambda: self.log()[-3000:], ended=self.process.poll)

    def end(self) -> int:
        assert self.process is not None
        return self.process.wait(240)

    def log(self) -> str:
        return (self.place / "log.txt").read_text()
