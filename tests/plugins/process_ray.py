"""One Ray for all files of tests that run a driver's own code in the process of the tests."""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

from tests.plugins.order import RAY, group_of
from train_core import TrainConfig


@pytest.fixture(scope="module")
def process_ray() -> None:
    """A Ray of this process, with what a pool of workers wants of it.

    The files that need it run one after the other (`RAY` in tests/plugins/order.py), and it stays
    until another file comes: a start takes seconds of both cores.
    """
    from train_core.cluster.runtime import POOL_SETTINGS, start_ray

    start_ray(TrainConfig(), POOL_SETTINGS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """End it before a test of another file looks for processes that are left behind."""
    yield
    ray = sys.modules.get("ray")
    groups = [group_of(one.nodeid) for one in (item, nextitem) if one]
    if ray is not None and ray.is_initialized() and groups[0] == RAY and groups[1:] != [RAY]:
        ray.shutdown()
