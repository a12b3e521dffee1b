from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import commands
from train_core.requests import ACCEPT

ROOT = Path(__file__).parents[2]

Evertrain = Callable[..., subprocess.CompletedProcess[str]]

# 1257 samples make 20 steps an epoch; checkpoints at 7, 14, 20, 21, 28, 35, 40, …
RETRAIN = (
    *("retrain", "--workload", "tests.chaos.held:HeldDigits", "--epochs", "3"),
    *("--batch-size", "64", "--num-shards", "4", "--checkpoint-every-steps", "7"),
    *("--gpus-per-worker", "0", "--checkpoint-backpressure", "wait"),
    # As tests/chaos/pipeline.py has it: what it strikes is compared with the undisturbed run.
    *("--eval-batch-size", "45"),
    # tests/flows/test_gate.py has the gate.
    "--no-gate",
)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own for everything that a user's commands leave behind."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def prefect_api(home: Path, shared_prefect: tuple[Path, str]) -> str:
    """The address of a Prefect server for all commands of a run of the tests.

    One that starts its own takes seconds more: cli/test_prefect_server.py and test_struck.py have
    that. The server's files are in `home`, as if it were the commands' own.
    """
    folder, url = shared_prefect
    (home / "prefect-server").symlink_to(folder / "prefect-server")
    return url


@pytest.fixture(scope="session")
def environment(home: Path, prefect_api: str) -> dict[str, str]:
    return isolated(home) | {"PREFECT_API_URL": prefect_api}


def isolated(home: Path) -> dict[str, str]:
    """An environment in which Prefect, MLflow and evertrain know of nothing but `home`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name == ACCEPT or not name.startswith(("PREFECT_", "MLFLOW_", "EVERTRAIN_"))
    }
    return {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "COLUMNS": "120",
    }


@pytest.fixture(scope="session")
def evertrain(home: Path, environment: dict[str, str]) -> Evertrain:
    """Runs the command line in `home`, as a user would, with `more` in its environment."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return commands.run([*commands.EVERTRAIN, *arguments], cwd=home, env=environment | more)

    return run


@pytest.fixture(scope="session")
def undisturbed(evertrain: Evertrain) -> str:
    """What the command printed of a pipeline that nobody disturbed: the run `undisturbed`."""
    done = evertrain(*RETRAIN, "--run", "undisturbed", "--num-workers", "1")
    assert done.returncode == 0, done.stderr
    return done.stdout
