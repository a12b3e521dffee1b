"""The messages of a training function's ranks about their reports, by the driver's store.

Nothing here needs a process group: the function may have any backend, or none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, PrefixStore  # type: ignore[attr-defined]  # the stub lacks it

from train_core.errors import UserCodeError
from train_core.rank.distributed.rendezvous import Membership, connect
from train_core.timing import TIMING

_log = logging.getLogger(__name__)


class DriverLostError(ConnectionError):
    """The driver's store does not answer: its process, or the way to it, is gone."""


class ReportChannel:
    """One rank's connection, used by one thread. Its methods raise DriverLostError if it breaks.

    After a wait of `long_wait_s`, a rank that sends something else is looked for.
    """

    def __init__(self, own: Membership, long_wait_s: float = TIMING.functions.long_wait_s) -> None:
        self._long_wait = timedelta(seconds=long_wait_s)
        self._rank, self._world_size = own.rank, own.world_size
        with _driver_may_be_lost():
            self._store: PrefixStore = connect(own)

    def send(self, topic: str, message: object) -> None:
        """Send this rank's message about a topic to rank 0."""
        self.announce(f"{topic}/{self._rank}", message)

    def collect(self, topic: str, *, unless: str = "") -> list[Any]:
        """Wait for the messages of all ranks about a topic; they are in the order of ranks.

        Raises UserCodeError if a rank sends one about the topic `unless` instead: it does not call
        what the others call.
        """
        messages = []
        for rank in range(self._world_size):
            key = f"{topic}/{rank}"
            while not self._comes_soon(key):
                self._refuse_other_call(topic, unless, rank)
            messages.append(self.wait_for(key))
            # A training of weeks would fill the driver's memory.
            self.forget(key)
        return messages

    def announce(self, topic: str, message: object) -> None:
        """Give all ranks the same message about a topic."""
        data = json.dumps(message)
        with _driver_may_be_lost():
            self._store.set(topic, data)

    def wait_for(self, topic: str) -> Any:
        """Wait for the message that `announce` gives about a topic."""
        # Another rank may train for days before it reports.
        while not self._comes_soon(topic):
            pass
        with _driver_may_be_lost():
            return json.loads(self._store.get(topic))

    def read(self, topic: str) -> Any:
        """The announcement about a topic, or None if there is none yet."""
        return self.wait_for(topic) if self._is_there(topic) else None

    def forget(self, topic: str) -> None:
        """Delete an announcement that all ranks have read."""
        with _driver_may_be_lost():
            self._store.delete_key(topic)

    def _refuse_other_call(self, topic: str, unless: str, rank: int) -> None:
        if unless and self._is_there(f"{unless}/{rank}"):
            raise UserCodeError(
                "train",
                f"rank {rank} is at {unless} while others are at {topic}: all ranks have to call "
                "ray.train.report as often",
            )
        _log.info("rank %d has not come to %s yet", rank, topic)

    def _is_there(self, key: str) -> bool:
        with _driver_may_be_lost():
            return bool(self._store.check([key]))

    def _comes_soon(self, key: str) -> bool:
        """Whether the message comes within `long_wait_s`."""
        with _driver_may_be_lost():
            try:
                self._store.wait([key], self._long_wait)
            except DistStoreError:
                return False
        return True


@contextmanager
def _driver_may_be_lost() -> Iterator[None]:
    """Give the error of a store that is gone its name."""
    try:
        yield
    except RuntimeError as error:
        raise DriverLostError(f"the driver's store does not answer: {error}") from error
