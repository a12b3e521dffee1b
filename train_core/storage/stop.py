"""The request that an attempt at a run shall stop: save, end, and be continued later.

`lease/0007-stop.json` is for attempt 7 alone: whoever continues the run does not meet it.
"""

from __future__ import annotations

from pydantic import BaseModel

from train_core.storage.documents import read_document
from train_core.storage.names import LEASES
from train_core.storage.store import Store

STOPPED = "request"
"""What a checkpoint says of why its training ended there, if that was asked for."""


class StopRequest(BaseModel):
    """Why an attempt shall stop, for the log."""

    reason: str


def ask_to_stop(store: Store, attempt: int, reason: str) -> None:
    """Ask the attempt to save and end. Raises StorageError."""
    store.write(_key(attempt), StopRequest(reason=reason).model_dump_json().encode())


def asked_to_stop(store: Store, attempt: int) -> str:
    """Why the attempt was asked to stop; empty if it was not. Raises StorageError."""
    try:
        return read_document(store, StopRequest, _key(attempt), "a request to stop")[0].reason
    except FileNotFoundError:
        return ""


def _key(attempt: int) -> str:
    return f"{LEASES}/{attempt:04d}-stop.json"
