"""The deployment as an operator has it: a real server, and a real worker that waits for runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.held import HOLD, NOTES
from tests.engine import alone
from tests.engine.digests import digest_of_training
from tests.flows.conftest import ROOT
from tests.flows.deployment.deployed import HELD, Prefect, Server, running
from train_core import TrainConfig
from train_core.storage.run_folder import RunFolder


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """A server that was restarted is another process; it ends with its fixture."""


@pytest.fixture(scope="session")
def server(home: Path, environment: dict[str, str]) -> Iterator[Server]:
    found = Server(home, environment)
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session")
def api(server: Server) -> str:
    """The API's URL of a Prefect server."""
    return server.url


@pytest.fixture(scope="session")
def prefect(api: str, home: Path, environment: dict[str, str]) -> Iterator[Prefect]:
    """Runs `prefect …` against the server, with a worker that waits for runs."""
    there = {
        **environment,
        "PREFECT_API_URL": api,
        "EVERTRAIN_STORAGE": str(home / "runs"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
        # What the runs of HeldDigits obey.
        HOLD: "mid-epoch@0",
        NOTES: str(home / "notes"),
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=ROOT,
            env=there,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("work-pool", "create", "evertrain", "--type", "process")
    run("deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    run("automation", "create", "--from-file", "deployments/automations.yaml")
    worker = ("worker", "start", "--pool", "evertrain")
    with running(*worker, environment=there, log=home / "worker.log"):
        yield run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What becomes of such a training if nobody holds it."""
    folder = RunFolder(str(tmp_path_factory.mktemp("undisturbed")), "run")
    alone.run(folder, **HELD | {"eval_batch_size": TrainConfig().eval_batch_size})
    return digest_of_training(folder)
