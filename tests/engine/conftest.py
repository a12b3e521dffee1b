from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.services import ray_cluster
from tests.plugins.leaks import Belongings
from tests.ranks import processes


@pytest.fixture(scope="session", autouse=True)
def server_of_ranks() -> None:
    """Started before any test, so that none is said to have left it behind."""
    processes.start_server()


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """Of a running cluster: one node, which says that it has 2 CPUs and 1 GPU.

    It starts workers while a test runs, so its tests take no look for leaks of their own: what is
    left is looked at when the cluster ended.
    """
    before = Belongings.now()
    # Ray's sockets need a short path.
    with (
        TemporaryDirectory(prefix="ray-") as folder,
        ray_cluster(Path(folder), "--num-cpus=2", "--num-gpus=1") as found,
    ):
        yield found
    assert not before.added(within_s=10)
