"""The fence list: which checkpoints of earlier attempts exist as an attempt begins.

`lease/0007-seal.json` is written once, as attempt 7 takes over. A checkpoint of an earlier attempt
that is not on the newest list was committed after that, by a fenced driver, and does not count.
(The name of the file is historical: the list was called a seal.)
"""

from __future__ import annotations

from pydantic import BaseModel

from train_core.storage.objects.store import Store
from train_core.storage.records.documents import read_document
from train_core.storage.records.names import LEASES, CheckpointName, FenceListName, LeaseName


class FenceList(BaseModel):
    """Which checkpoints of earlier attempts exist as an attempt begins."""

    checkpoints: tuple[str, ...]


def write_fence_list(store: Store, attempt: int, checkpoints: list[CheckpointName]) -> None:
    """Write down which checkpoints of earlier attempts exist as `attempt` begins."""
    written = FenceList(checkpoints=tuple(map(str, checkpoints)))
    store.create(_key(attempt), written.model_dump_json().encode())


def read_fence_list(store: Store) -> tuple[int, frozenset[str]]:
    """The newest attempt that has a fence list, and the checkpoints on it; (0, {}) without one."""
    names = store.names(LEASES)
    newest = max((lease.attempt for lease in map(LeaseName.parse, names) if lease), default=0)
    lists = (found.attempt for found in map(FenceListName.parse, names) if found)
    # One of an attempt that has no lease is nobody's.
    attempt = max((number for number in lists if number <= newest), default=0)
    if not attempt:
        return 0, frozenset()
    found, _ = read_document(store, FenceList, _key(attempt), "a lease's fence list")
    return attempt, frozenset(found.checkpoints)


def _key(attempt: int) -> str:
    return f"{LEASES}/{FenceListName(attempt)}"
