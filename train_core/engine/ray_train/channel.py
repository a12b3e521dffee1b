"""The messages of a training function's ranks about their reports, by the driver's store.

Nothing here needs a process group: the function may have any backend, or none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, PrefixStore  # type: ignore[attr-defined]  # the stub lacks it

from train_core.engine.distributed.rendezvous import Membership, connect
from train_core.errors import UserCodeError

LONG = timedelta(seconds=60)
"""A wait after which a rank that calls something else is looked for."""
_log = logging.getLogger(__name__)


class ReportChannel:
    """One rank's connection, used by one thread. Its methods raise DriverLostError if it breaks."""

    def __init__(self, own: Membership, long: timedelta = LONG) -> None:
        self._long = long
        self._rank, self._world_size = own.rank, own.world_size
        try:
            self._store: PrefixStore = connect(own)
        except RuntimeError as error:
            raise _broken(error) from error

    def send(self, topic: str, message: object) -> None:
        """Send this rank's message about a topic to rank 0."""
        self._set(f"{topic}/{self._rank}", message)

    def collect(self, topic: str, *, unless: str = "") -> list[Any]:
        """Wait for the messages of all ranks about a topic; they are in the order of ranks.

        Raises UserCodeError if a rank sends one about the topic `unless` instead: it does not call
        what the others call.
        """
        keys = [f"{topic}/{rank}" for rank in range(self._world_size)]
        messages = [
            self._wait(key, lambda rank=rank: self._refuse(topic, unless, rank))  # type: ignore[misc]  # it binds the rank
            for rank, key in enumerate(keys)
        ]
        for key in keys:
            # A training of weeks would fill the driver's memory.
            self._store.delete_key(key)
        return messages

    def announce(self, topic: str, message: object) -> None:
        """Give all ranks the same message about a topic."""
        self._set(topic, message)

    def wait_for(self, topic: str) -> Any:
        """Wait for the message that `announce` gives about a topic."""
        return self._wait(topic)

    def read(self, topic: str) -> Any:
        """The announcement about a topic, or None if there is none yet."""
        try:
            return self._wait(topic) if self._store.check([topic]) else None
        except RuntimeError as error:
            raise _broken(error) from error

    def forget(self, topic: str) -> None:
        """Delete an announcement that all ranks have read."""
        try:
            self._store.delete_key(topic)
        except RuntimeError as error:
            raise _broken(error) from error

    def _set(self, key: str, message: object) -> None:
        try:
            self._store.set(key, json.dumps(message))
        except RuntimeError as error:
            raise _broken(error) from error

    def _refuse(self, topic: str, unless: str, rank: int) -> None:
        if unless and self._store.check([f"{unless}/{rank}"]):
            raise UserCodeError(
                "train",
                f"rank {rank} is at {unless} while others are at {topic}: all ranks have to call "
                "ray.train.report as often",
            )
        _log.info("rank %d has not come to %s yet", rank, topic)

    def _wait(self, key: str, on_long: Callable[[], None] = lambda: None) -> Any:
        # Another rank may train for days before it reports.
        while not self._is_there_soon(key):
            on_long()
        try:
            return json.loads(self._store.get(key))
        except RuntimeError as error:
            raise _broken(error) from error

    def _is_there_soon(self, key: str) -> bool:
        try:
            self._store.wait([key], self._long)
        except DistStoreError:
            return False
        except RuntimeError as error:
            raise _broken(error) from error
        return True


class DriverLostError(ConnectionError):
    """The driver's store does not answer: its process, or the way to it, is gone."""


def _broken(error: RuntimeError) -> DriverLostError:
    return DriverLostError(f"the driver's store does not answer: {error}")
