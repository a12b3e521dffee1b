from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def ranks_can_start(server_of_ranks: None) -> None:
    """The server of ranks runs before any test, so that none is said to have left it behind."""
