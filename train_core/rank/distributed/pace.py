"""How far who follows a training has come: the training is one report ahead of it at most.

A search decides on each report whether the training goes on. The driver posts the step of the
newest report that was taken in its store, where rank 0 finds it. Where nothing is posted, nobody is
waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from train_core.rank.distributed.rendezvous import RendezvousStore

TAKEN = "taken"
"""The key of the step of the newest report that was taken."""


class Pace:
    """What the driver knows of the follower, over all attempts. May be told by any thread."""

    def __init__(self, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        """Whether the training waits for a follower."""
        self._taken = 0
        self._post: Callable[[int], None] | None = None
        self._one_at_a_time = threading.Lock()

    def take(self, step: int) -> None:
        """Note that the follower has all reports up to this step."""
        with self._one_at_a_time:
            if step > self._taken:
                self._taken = step
                self._post_newest()

    def post_to(self, store: RendezvousStore, group: str) -> None:
        """Tell the ranks of a group, now and from now on."""
        with self._one_at_a_time:
            self._post = lambda step: store.post(group, TAKEN, str(step))
            self._post_newest()

    def _post_newest(self) -> None:
        if self._is_kept and self._post is not None:
            try:
                self._post(self._taken)
            except ConnectionError:
                # The attempt is over: the next one is told.
                self._post = None
