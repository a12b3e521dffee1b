"""The messages of a training function's ranks about their reports, by the driver's store.

Nothing here needs a process group: the function may have any backend, or none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, PrefixStore  # type: ignore[attr-defined]  # the stub lacks it

from train_core.errors import UserCodeError
from train_core.rank.distributed.rendezvous import Membership, connect
from train_core.timing import TIMING, FunctionTiming

_SHORTEST_S = 0.001
_MOST_NAMED = 8
_log = logging.getLogger(__name__)


class DriverLostError(ConnectionError):
    """The driver's store does not answer: its process, or the way to it, is gone."""


class ReportChannel:
    """One rank's connection, used by one thread. Its methods raise DriverLostError if it breaks."""

    def __init__(self, own: Membership, timing: FunctionTiming = TIMING.functions) -> None:
        self._timing = timing
        self._rank, self._world_size = own.rank, own.world_size
        self._told: set[str] = set()
        """What of a wait for other ranks was warned about."""
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
        keys = [f"{topic}/{rank}" for rank in range(self._world_size)]
        for rank, key in enumerate(keys):
            while not self._comes_soon(key, topic):
                self._refuse_other_call(topic, unless, rank)
        messages = [self.wait_for(key) for key in keys]
        # A training of weeks would fill the driver's memory. All at once: whoever waits sees there
        # which ranks have come.
        for key in keys:
            self.forget(key)
        return messages

    def announce(self, topic: str, message: object) -> None:
        """Give all ranks the same message about a topic."""
        data = json.dumps(message)
        with _driver_may_be_lost():
            self._store.set(topic, data)

    def wait_for(self, topic: str, *, after: str = "") -> Any:
        """Wait for the message that `announce` gives about a topic.

        It follows the messages of all ranks about the topic `after`.
        """
        # Another rank may train for days before it reports.
        while not self._comes_soon(topic, after):
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

    def _comes_soon(self, key: str, topic: str = "") -> bool:
        """Whether the message comes within `long_wait_s`. A wait for a topic is told before."""
        told_s = min(self._timing.wait_told_s, self._timing.long_wait_s) if topic else 0.0
        if topic:
            if self._comes_within(key, told_s):
                return True
            self._tell_of_wait(topic)
        return self._comes_within(key, self._timing.long_wait_s - told_s)

    def _comes_within(self, key: str, wait_s: float) -> bool:
        # torch takes 0 for its own limit, which is long.
        wait = timedelta(seconds=max(wait_s, _SHORTEST_S))
        with _driver_may_be_lost():
            try:
                self._store.wait([key], wait)
            except DistStoreError:
                return False
        return True

    def _tell_of_wait(self, topic: str) -> None:
        """Warn who waits for whom, once; of those that wait, the first rank does."""
        ranks = range(self._world_size)
        come = [rank for rank in ranks if self._is_there(f"{topic}/{rank}")]
        missing = [rank for rank in ranks if rank not in come]
        if not come or come[0] != self._rank or not missing:
            return
        awaited = _named(missing)
        if awaited not in self._told:
            self._told.add(awaited)
            _log.warning(
                "%s waited %g s for %s at %s: it goes on as soon as all ranks have come there",
                _named(come),
                self._timing.wait_told_s,
                awaited,
                topic,
            )


def _named(ranks: Sequence[int]) -> str:
    """As `rank 2`, or `ranks 0, 1`; of many the first ones."""
    shown = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = len(ranks) - _MOST_NAMED
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''}"


@contextmanager
def _driver_may_be_lost() -> Iterator[None]:
    """Give the error of a store that is gone its name."""
    try:
        yield
    except RuntimeError as error:
        raise DriverLostError(f"the driver's store does not answer: {error}") from error
