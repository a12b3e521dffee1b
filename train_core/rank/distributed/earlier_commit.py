"""How the ranks of an attempt learn what earlier attempts have committed, from the driver's store.

The driver asks the storage while workers load their data and join: nobody waits for one after the
other.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from pydantic import TypeAdapter

from train_core.errors import AttemptLostError, words_of
from train_core.rank.distributed.rendezvous import Membership, RendezvousStore, connect
from train_core.rank.distributed.stop_requests import LOST
from train_core.storage.run_folder import Commit

_KEY = "earlier"
_POLL_S = 0.01
_POSTED = TypeAdapter[Commit | None](Commit | None)


def post_earlier(store: RendezvousStore, group: str, earlier: Future[Commit | None]) -> None:
    """Post the newest commit of earlier attempts to the ranks of a group once it is known.

    If it cannot be known, their attempt is lost.
    """

    def post(known: Future[Commit | None]) -> None:
        error = known.exception()
        try:
            if error is not None:
                store.post(group, LOST, words_of(error))
            else:
                store.post(group, _KEY, _POSTED.dump_json(known.result()).decode())
        except ConnectionError:
            """The ranks have ended."""

    earlier.add_done_callback(post)


def wait_for_earlier(own: Membership) -> Commit | None:
    """The newest commit of earlier attempts, from the driver's store.

    Raises AttemptLostError if the attempt is lost before it is known.
    """
    store = connect(own)
    while not store.check([_KEY]):
        if store.check([LOST]):
            raise AttemptLostError(store.get(LOST).decode())
        time.sleep(_POLL_S)
    return _POSTED.validate_json(store.get(_KEY))
