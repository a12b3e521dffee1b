"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(
    what: Callable[[], object],
    within_s: float,
    told: Callable[[], str] = lambda: "",
    every_s: float = 0.05,
) -> None:
    """Wait until it is true. Fails after `within_s` seconds, with what is `told` then."""
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, told()
        time.sleep(every_s)
