"""How many workers a cluster has room for, and when another number would be better.

A node that is drained and a node that came are met in the same way: the attempt is asked to save
and stop, and the next one begins with as many workers as there is room for then.
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
from train_core.errors import StorageError
from train_core.storage.coordination.stop_request import ask_to_move
from train_core.storage.objects.store import Store

LOOK_EVERY_S = 1.0
LAST_LOOK_S = 5.0
SETTLE_S = 5.0
"""How long resources of workers that ended may be on their way back."""
GROW_AFTER_S = 10.0
"""How long there has to be room for more, before all begin again with more."""
_SAY_EVERY_S = 60.0
_log = logging.getLogger("train_core.driver")


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
    config: TrainConfig, look: Callable[[], int], check: Callable[[], None]
) -> int:
    """With how many workers to begin now: waits until there is room for the fewest.

    `look` says for how many there is; while it waits it calls `check`, which may raise.
    """
    begin = said_at = time.monotonic()
    while (found := look()) < config.num_workers:
        waited_s = time.monotonic() - begin
        if found >= config.fewest_workers and waited_s > SETTLE_S:
            return found
        if waited_s > SETTLE_S and (said_at == begin or time.monotonic() - said_at > _SAY_EVERY_S):
            said_at = time.monotonic()
            _log.warning(
                "the cluster has room for %d workers, %d are needed: waiting",
                found,
                config.fewest_workers,
            )
        time.sleep(LOOK_EVERY_S)
        check()
    return config.num_workers


class ClusterWatch:
    """Asks an attempt to stop once another number of workers, or other nodes, would be better."""

    def __init__(self, store: Store, attempt: int, config: TrainConfig, workers: int) -> None:
        self._store = store
        self._attempt = attempt
        self._config = config
        self._workers = workers
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
            # One that waits for a storage or for Ray is left behind.
            thread.join(LAST_LOOK_S)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            try:
                reason = self._reason()
                if reason:
                    _log.info("%s: a checkpoint is saved, and the next attempt begins", reason)
                    ask_to_move(self._store, self._attempt, reason)
                    return
            except StorageError as error:
                _log.warning("the training cannot be asked to move: %s", error)
            except Exception as error:  # noqa: BLE001 (whatever Ray raises while its head is away)
                _log.debug("the state of the cluster is unknown: %s", error)

    def _reason(self) -> str:
        """Why another attempt would be better; empty if it would not."""
        if drained := drained_under_workers():
            return f"node {', '.join(sorted(drained))} is being drained"
        # What has to lie on one node, or on as many, is not seen by looking at what is free.
        may_grow = self._config.placement_strategy in ("PACK", "SPREAD")
        if may_grow and self._workers < self._config.num_workers and room(self._config) > 0:
            now = time.monotonic()
            self._room_since = self._room_since or now
            if now - self._room_since > GROW_AFTER_S:
                return f"there is room for more than {self._workers} workers"
        else:
            self._room_since = None
        return ""
