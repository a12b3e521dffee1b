"""The deployment as an operator has it: a real server, and a real worker that waits for runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import HELD, Prefect, Server, Site
from tests.rank import alone
from tests.rank.digests import digest_of_training
from train_core import TrainConfig
from train_core.storage.run_folder import RunFolder


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """A server that was restarted is another process; it ends with its fixture."""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not that of the other commands, which have another server."""
    return tmp_path_factory.mktemp("deployment")


@pytest.fixture(scope="session")
def environment(home: Path) -> dict[str, str]:
    """Without a server: each place of a deployment names its own."""
    return isolated(home)


@pytest.fixture(scope="session")
def server(home: Path, environment: dict[str, str]) -> Iterator[Server]:
    with Server(home, environment) as found:
        yield found


@pytest.fixture(scope="session")
def api(server: Server) -> str:
    return server.url


@pytest.fixture(scope="session")
def prefect(api: str, home: Path, environment: dict[str, str]) -> Iterator[Prefect]:
    """Runs `prefect …` against the server, with a worker that waits for runs."""
    site = Site(home, environment, api)
    site.deploy()
    with site.worker():
        yield site.prefect


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What becomes of such a training if nobody holds it."""
    folder = RunFolder(str(tmp_path_factory.mktemp("undisturbed")), "run")
    alone.run(folder, **HELD | {"eval_batch_size": TrainConfig().eval_batch_size})
    return digest_of_training(folder)
