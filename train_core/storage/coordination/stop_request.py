"""The request that an attempt at a run shall stop: save, end, and be continued later.

`lease/0007-stop.json` is for attempt 7 alone: the next attempt does not meet it.
"""

from __future__ import annotations

from pydantic import BaseModel

from train_core.storage.objects.store import Store
from train_core.storage.records.documents import SMALL_BYTES, read_document
from train_core.storage.records.names import LEASES

SCHEDULER = "scheduler"
"""Who asks: the scheduler of a search, which ends a trial."""


class StopRequest(BaseModel):
    """Why an attempt shall stop, for the log, and whether its driver begins another one then."""

    reason: str
    goes_on: bool = False
    by: str = ""
    """Who asks, if that is shown afterwards."""

    def replaces(self, earlier: StopRequest | None) -> bool:
        """Whether this counts and the earlier one no more: an end outranks a move."""
        return earlier is None or (earlier.goes_on and not self.goes_on)


def ask_to_stop(store: Store, attempt: int, reason: str, by: str = "") -> None:
    """Ask the attempt to save and end. Raises StorageError."""
    store.write(_key(attempt), StopRequest(reason=reason, by=by).model_dump_json().encode())


def stop_request(store: Store, attempt: int) -> StopRequest | None:
    """What the attempt was asked for, if it was. Raises StorageError."""
    try:
        what = "a request to stop"
        key = _key(attempt)
        return read_document(store, StopRequest, key, what, max_bytes=SMALL_BYTES)[0]
    except FileNotFoundError:
        return None


def _key(attempt: int) -> str:
    return f"{LEASES}/{attempt:04d}-stop.json"
