from __future__ import annotations

import pytest

from tests.ranks import processes


@pytest.fixture(scope="session", autouse=True)
def server_of_ranks() -> None:
    """Started before any test, so that none is said to have left it behind."""
    processes.start_server()
