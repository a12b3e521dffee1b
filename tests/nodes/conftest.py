"""A network of machines, a Ray cluster on it, and a place on a real S3 server that they reach.

They are started once for each file of tests: a head takes ten seconds, and a node five.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.nodes.network import Network
from tests.nodes.ray_nodes import Place, RayCluster, ray_cluster_on
from tests.plugins.leaks import Belongings
from tests.storage.doubles.fault_proxy import FaultProxy


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """The cluster starts workers while a test runs; what is left is looked at when it ended."""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    before = Belongings.now()
    with Network() as made:
        yield made
        assert not made.processes()
    assert not before.added(within_s=10)


@pytest.fixture(scope="module")
def found_by(object_store: str, net: Network) -> Iterator[dict[str, str]]:
    """The environment by which the machines find the S3 server."""
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"], host=net.address) as proxy:
        yield {"AWS_ENDPOINT_URL": proxy.url}


@pytest.fixture(scope="module")
def cluster(net: Network, found_by: dict[str, str]) -> Iterator[RayCluster]:
    with ray_cluster_on(net, found_by) as started:
        yield started


@pytest.fixture
def place(object_store: str, found_by: dict[str, str]) -> Place:
    return Place(f"{object_store}/{uuid.uuid4().hex}", found_by)
