"""Where the ranks of an attempt find a request to stop.

Ranks that a driver started read it in the driver's rendezvous store, which does not need the
storage; ranks without a driver read it in the run folder.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from pydantic import ValidationError
from torch.distributed import Store  # type: ignore[attr-defined]  # the stub lacks it

from train_core.engine.distributed.rendezvous import Membership, RendezvousStore, connect
from train_core.storage.coordination.stop_request import StopRequest, stop_request
from train_core.storage.objects.store import Store as ObjectStore

STOP = "stop"
"""The key of the driver's newest request, in the store of the attempt."""
_CONNECT_TIMEOUT = timedelta(seconds=10)


class StopSource(Protocol):
    """Gives the newest request to an attempt. Used by one thread."""

    def poll(self) -> StopRequest | None:
        """The newest request, if there is one.

        Raises EvertrainError or OSError if it cannot be read now.
        """


class StopInFolder:
    """The request in the run folder."""

    def __init__(self, store: ObjectStore, attempt: int) -> None:
        self._store = store
        self._attempt = attempt

    def poll(self) -> StopRequest | None:
        """The newest request, if any. Raises StorageError, or CheckpointError for damage."""
        return stop_request(self._store, self._attempt)


class StopFromDriver:
    """The request that the driver has posted in its rendezvous store.

    It has a connection of its own, as two threads must not use one at the same time.
    """

    def __init__(self, own: Membership) -> None:
        self._own = own
        self._store: Store | None = None

    def poll(self) -> StopRequest | None:
        """The newest request, if there is one. Raises ConnectionError."""
        try:
            if self._store is None:
                self._store = connect(self._own, _CONNECT_TIMEOUT)
            if not self._store.check([STOP]):
                return None
            return StopRequest.model_validate_json(self._store.get(STOP))
        except (RuntimeError, ValidationError) as error:
            self._store = None
            raise ConnectionError(f"the driver's store cannot be read: {error}") from error


def post_stop(store: RendezvousStore, group: str, request: StopRequest) -> None:
    """Post the request to all ranks of a group, including those that start later."""
    store.post(group, STOP, request.model_dump_json())
