"""How many workers a cluster has room for, and when another number would be better.

A node that is drained and a node that came are met in the same way: the attempt is asked to save
and stop, and the next one begins with as many workers as there is room for then. The decisions are
in `policy/membership.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from train_core.config import TrainConfig
from train_core.engine.cluster.resources import (
    capacity,
    drained_under_workers,
    free_resources,
)
from train_core.engine.cluster.timing import Timing
from train_core.policy.membership import (
    MembershipRules,
    has_room_for_more,
    reason_to_move,
    workers_to_begin,
)

_log = logging.getLogger("train_core.driver")


def membership_rules(config: TrainConfig, timing: Timing) -> MembershipRules:
    """How many workers the configuration wants."""
    return MembershipRules(
        fewest=config.fewest_workers,
        most=config.num_workers,
        # What has to lie on one node, or on as many, is not seen by looking at what is free.
        can_grow=config.placement_strategy in ("PACK", "SPREAD"),
        settle_s=timing.settle_s,
        grow_after_s=timing.grow_after_s,
    )


def room(config: TrainConfig) -> int:
    """How many more workers can be placed now, on nodes that will stay."""
    return capacity(config, free_resources())


def with_room(config: TrainConfig) -> TrainConfig:
    """The configuration with no more workers than there is room for now, and one at least.

    It is for scoring, where shards queue for the workers.
    """
    found = min(config.num_workers, config.shards, room(config))
    return config.model_copy(update={"num_workers": max(found, 1)})


def number_of_workers(
    config: TrainConfig, free_slots: Callable[[], int], check: Callable[[], None], timing: Timing
) -> int:
    """With how many workers to begin now: waits until there is room for the fewest.

    `free_slots` gives how many workers have room; while it waits it calls `check`, which may raise.
    """
    rules = membership_rules(config, timing)
    begin = said_at = time.monotonic()
    while (
        workers := workers_to_begin(found := free_slots(), time.monotonic() - begin, rules)
    ) is None:
        now = time.monotonic()
        is_news = said_at == begin or now - said_at > timing.say_every_s
        if found < rules.fewest and now - begin > rules.settle_s and is_news:
            said_at = now
            _log.warning(
                "the cluster has room for %d workers, %d are needed: waiting",
                found,
                rules.fewest,
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
        timing: Timing,
    ) -> None:
        self._ask_to_move = ask_to_move
        self._config = config
        self._workers = workers
        self._timing = timing
        self._rules = membership_rules(config, timing)
        self._room_since: float | None = None
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
                _log.info("%s: a checkpoint is saved, and the next attempt begins", reason)
                self._ask_to_move(reason)
                return

    def _reason(self) -> str:
        """Why another attempt would be better; empty if it would not."""
        if drained := drained_under_workers():
            return reason_to_move(self._workers, drained, 0, self._rules)
        now = time.monotonic()
        # Ray is asked only if the answer counts.
        can_grow = has_room_for_more(self._workers, 1, self._rules)
        if not can_grow or not has_room_for_more(self._workers, room(self._config), self._rules):
            self._room_since = None
            return ""
        self._room_since = now if self._room_since is None else self._room_since
        return reason_to_move(self._workers, (), now - self._room_since, self._rules)
