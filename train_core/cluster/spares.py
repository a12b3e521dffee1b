"""When the spares of a pool are started, and when they are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import OutOfMemoryError, RayError

from train_core.cluster.resources import available_memory_bytes
from train_core.cluster.slots import Slots
from train_core.policy.membership import why_no_spare
from train_core.timing import ClusterTiming

_log = logging.getLogger("train_core.driver")


@dataclass(frozen=True)
class SpareRules:
    """The spares that an attempt is to have, and what each calls as it begins."""

    number: int | None
    """On each node with workers; None: one, if it seems worth it."""
    function: str
    """By its name, `module:name`."""
    arguments: Sequence[Any]
    left_s: Callable[[], float | None]
    """Gives how long the training will go on; None: nobody knows."""


class SpareKeeper:
    """Starts spares while the ranks of an attempt run, and others for those that were used or died.

    One that died because there was no memory left is the last one on its node.
    """

    def __init__(self, timing: ClusterTiming) -> None:
        self._timing = timing
        self._full_nodes: set[str] = set()
        """Where there was no memory left for one."""
        self._is_due_at = 0.0
        """On this process's monotonic clock; infinity: not in this attempt."""

    def begin(self, *, has_lost_worker: bool) -> None:
        """Begin an attempt: who has lost a worker may lose another one soon."""
        after_s = 0 if has_lost_worker else self._timing.spare_after_s
        self._is_due_at = time.monotonic() + after_s

    def give_up(self) -> None:
        """Start no more in this attempt."""
        self._is_due_at = float("inf")

    def keep(self, slots: Slots, wanted: SpareRules) -> None:
        """Start a spare if one is missing, and it is time."""
        for node, error in slots.dead_spares():
            _log.debug("a spare died: %s", error)
            if isinstance(error, OutOfMemoryError) and node not in self._full_nodes:
                # A process more is one too many.
                self._full_nodes.add(node)
                _log.info("no spare is started: one was ended as there was no memory left")
        number = 1 if wanted.number is None else wanted.number
        if not number or time.monotonic() < self._is_due_at:
            return
        missing = slots.without_spares(number, self._full_nodes)
        if missing and (why := self._why_not(slots, wanted)):
            self.give_up()
            _log.info("no spare is started: %s", why)
            return
        # The worker of one may have died, or be busy, and those of the others answer.
        if any(self._has_started(slots, slot, wanted) for slot in missing):
            _log.info("a spare is started, for the place of a worker that dies")
            if not slots.without_spares(number, self._full_nodes):
                # One that dies as it begins is not followed by another one each second.
                self._is_due_at = time.monotonic() + self._timing.spare_after_s

    def _has_started(self, slots: Slots, slot: int, wanted: SpareRules) -> bool:
        try:
            return slots.start_spare(slot, wanted.function, wanted.arguments)
        except RayError as error:
            _log.debug("a spare was not started: %s", error)
            return False

    def _why_not(self, slots: Slots, wanted: SpareRules) -> str:
        """Why no spare is started; empty: one is."""
        if wanted.number is not None:
            return ""
        room_bytes = available_memory_bytes() - max(slots.memory_bytes())
        return why_no_spare(wanted.left_s(), room_bytes, least_left_s=self._timing.spare_left_s)
