"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def wait_for(
    what: Callable[[], _T],
    within_s: float,
    told: Callable[[], str] = lambda: "",
    every_s: float = 0.05,
    ended: Callable[[], object] = lambda: None,
) -> _T:
    """What it gives, as soon as that is true.

    Fails after `within_s` seconds, or when `ended` gives more than None, as `poll` of a process
    does; with what is `told` then.
    """
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert (code := ended()) is None, f"it ended with {code}: {told()}"
        assert time.monotonic() < deadline, told()
        time.sleep(every_s)
    return found
