"""Scaling: how many workers can be placed now, and when another number of them would be better.

A drained node and a node that joined are met in the same way: the attempt is asked to save and
stop, and the next one begins with as many workers as can be placed then. The decisions are in
`policy/membership.py`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from train_core.cluster.resources import (
    capacity,
    drained_under_workers,
    free_resources,
)
from train_core.config import TrainConfig
from train_core.policy.membership import (
    MembershipRules,
    has_room_for_more,
    reason_to_move,
    workers_to_begin,
)
from train_core.timing import ClusterTiming

_log = logging.getLogger("train_core.driver")


def membership_rules(config: TrainConfig, timing: ClusterTiming) -> MembershipRules:
    """How many workers the configuration wants."""
    return MembershipRules(
        fewest=config.fewest_workers,
        most=config.num_workers,
        # Free resources do not say whether workers fit that must share one node, or none.
        can_grow=config.placement_strategy in ("PACK", "SPREAD"),
        settle_s=timing.settle_s,
        grow_after_s=timing.grow_after_s,
    )


def room_for(config: TrainConfig) -> int:
    """How many more workers can be placed now, on nodes that are not being drained."""
    return capacity(config, free_resources())


def within_room(config: TrainConfig) -> TrainConfig:
    """The configuration with no more workers than there is room for, and one at least.

    It is for scoring, where shards queue for the workers.
    """
    workers = min(config.num_workers, config.shards, room_for(config))
    return config.model_copy(update={"num_workers": max(workers, 1)})


def number_of_workers(
    config: TrainConfig, poll: Callable[[], int], check: Callable[[], None], timing: ClusterTiming
) -> int:
    """With how many workers to begin now: waits until the fewest can be placed.

    `poll` gives how many can be placed; while it waits it calls `check`, which may raise.
    """
    rules = membership_rules(config, timing)
    begin, warned_at = time.monotonic(), -math.inf
    while (workers := workers_to_begin(room := poll(), time.monotonic() - begin, rules)) is None:
        now = time.monotonic()
        has_settled, is_due = now - begin > rules.settle_s, now - warned_at > timing.warn_every_s
        if room < rules.fewest and has_settled and is_due:
            warned_at = now
            _log.warning(
                "the cluster has room for %d workers, %d are needed: waiting", room, rules.fewest
            )
        time.sleep(timing.poll_s)
        check()
    return workers


class ClusterWatch:
    """Asks an attempt to move once another number of workers, or other nodes, would be better.

    `ask_to_move` is called once, with the reason.
    """

    def __init__(
        self,
        ask_to_move: Callable[[str], None],
        config: TrainConfig,
        workers: int,
        timing: ClusterTiming,
    ) -> None:
        self._ask_to_move = ask_to_move
        self._config = config
        self._workers = workers
        self._timing = timing
        self._rules = membership_rules(config, timing)
        self._free_since: float | None = None
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch, in a thread of its own, while the block runs."""
        thread = threading.Thread(target=self._watch, name="cluster-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            # One that waits for Ray is left behind.
            thread.join(self._timing.last_poll_s)

    def _watch(self) -> None:
        while not self._ended.wait(self._timing.poll_s):
            try:
                reason = self._reason()
            except Exception as error:  # noqa: BLE001 (whatever Ray raises while its head is away)
                _log.debug("the state of the cluster is unknown: %s", error)
                continue
            if reason:
                _log.info("%s: the attempt ends at its next save, and another begins", reason)
                self._ask_to_move(reason)
                return

    def _reason(self) -> str:
        """Why another attempt would be better; empty if it would not."""
        if drained := drained_under_workers():
            return reason_to_move(self._workers, drained, 0, self._rules)
        now = time.monotonic()
        # Ray is asked only if the answer counts.
        can_grow = has_room_for_more(self._workers, 1, self._rules)
        room = room_for(self._config) if can_grow else 0
        if not has_room_for_more(self._workers, room, self._rules):
            self._free_since = None
            return ""
        self._free_since = now if self._free_since is None else self._free_since
        return reason_to_move(self._workers, (), now - self._free_since, self._rules)
