"""A network of machines, and a place on a real S3 server that they reach."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.cluster.network import Network, network
from tests.cluster.ray_nodes import Place
from tests.leaks import Belongings
from tests.storage.fault_proxy import FaultProxy


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """The cluster starts workers while a test runs; what is left is looked at when it ended."""


@pytest.fixture
def net() -> Iterator[Network]:
    before = Belongings.now()
    with network() as made:
        yield made
    assert not before.added(within_s=10)


@pytest.fixture
def place(object_store: str, net: Network) -> Iterator[Place]:
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"], host=net.address) as proxy:
        yield Place(f"{object_store}/{uuid.uuid4().hex}", {"AWS_ENDPOINT_URL": proxy.url})
