"""The messages of a training function's ranks about their reports, by the driver's store.

Nothing here needs a process group: the function may have any backend, or none.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # the stub lacks it

from train_core.engine.distributed.rendezvous import Membership, connect

# Another rank may train for days before it reports; a store that is gone is noticed at once.
_FOR_EVER = timedelta(days=3650)


class ReportChannel:
    """One rank's connection, used by one thread. Its methods raise ConnectionError if it breaks."""

    def __init__(self, own: Membership) -> None:
        self._rank, self._world_size = own.rank, own.world_size
        try:
            self._store: PrefixStore = connect(own)
        except RuntimeError as error:
            raise ConnectionError(f"the driver's store cannot be reached: {error}") from error

    def send(self, topic: str, message: object) -> None:
        """Send this rank's message about a topic to rank 0."""
        self._set(f"{topic}/{self._rank}", message)

    def collect(self, topic: str) -> list[Any]:
        """Wait for the messages of all ranks about a topic; they are in the order of ranks."""
        keys = [f"{topic}/{rank}" for rank in range(self._world_size)]
        messages = [self._wait(key) for key in keys]
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
        self._store.delete_key(topic)

    def _set(self, key: str, message: object) -> None:
        try:
            self._store.set(key, json.dumps(message))
        except RuntimeError as error:
            raise _broken(error) from error

    def _wait(self, key: str) -> Any:
        try:
            self._store.wait([key], _FOR_EVER)
            return json.loads(self._store.get(key))
        except RuntimeError as error:
            raise _broken(error) from error


def _broken(error: RuntimeError) -> ConnectionError:
    return ConnectionError(f"the driver's store does not answer: {error}")
