"""Messages of the ranks' storing threads to rank 0's, outside of the training's collectives.

By a store of rank 0's own: a background thread takes part in no collective, which could meet one
of the training's; and a driver that stands still keeps no checkpoint from being committed.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # the stub lacks it

from train_core.errors import StorageError
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.rendezvous import RendezvousStore, own_address

_POLL_S = 0.02
_LAST_S = 0.25
"""How long messages that are on their way are waited for, once nobody waits for others."""
_COMMITTED = "committed"
"""The key of the newest commit's name."""


class RankMailbox:
    """Messages of one attempt, by the save that they are about: all ranks count alike.

    All ranks have to make theirs at the same time.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._store: TCPStore | None = None
        self._served: RendezvousStore | None = None
        if group.world_size > 1:
            self._served = RendezvousStore(own_address()) if group.is_rank0 else None
            address = group.broadcast_from_rank0(self._served.address if self._served else ("", 0))
            self._store = TCPStore(*address, is_master=False)

    def send(self, save: int, message: dict[str, Any]) -> None:
        """Send rank 0 the result of this rank's part of a checkpoint."""
        if self._store is not None:
            self._store.set(f"{save}/{self._group.rank}", json.dumps(message))

    def announce(self, commit: str) -> None:
        """Tell the other ranks the name of the newest commit; rank 0 does."""
        if self._store is not None:
            self._store.set(_COMMITTED, commit)

    def announced(self) -> str:
        """The name of the newest commit that rank 0 has announced; empty: none yet."""
        if self._store is None or not self._store.check([_COMMITTED]):
            return ""
        return str(self._store.get(_COMMITTED).decode())

    def collect(
        self, save: int, *, timeout_s: float, give_up: threading.Event
    ) -> list[dict[str, Any]]:
        """The messages of the other ranks, in the order of ranks.

        Raises StorageError if not all have within `timeout_s`, or within some moments of `give_up`.
        """
        if self._store is None:
            return []
        keys = {rank: f"{save}/{rank}" for rank in range(1, self._group.world_size)}
        begin = time.monotonic()
        while missing := [rank for rank, key in keys.items() if not self._store.check([key])]:
            if time.monotonic() - begin > timeout_s:
                raise StorageError(
                    f"ranks {missing} did not store their files within {timeout_s:g} s"
                )
            if give_up.wait(_POLL_S):
                timeout_s = min(timeout_s, time.monotonic() - begin + _LAST_S)
                time.sleep(_POLL_S)
        found = [json.loads(self._store.get(key)) for key in keys.values()]
        for key in keys.values():
            self._store.delete_key(key)
        return found
