"""The fence list: which checkpoints of earlier attempts exist as an attempt begins.

`lease/0007-seal.json` is written once, as attempt 7 takes over. A checkpoint of an earlier attempt
that is not on the newest list was committed after that, by a fenced driver, and does not count.
(The name of the file is historical: the list was called a seal.)
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from train_core.storage.objects.store import Store
from train_core.storage.records.documents import read_document
from train_core.storage.records.names import LEASES, CheckpointName, FenceListName, LeaseName


class FenceList(BaseModel):
    """Which checkpoints of earlier attempts exist as an attempt begins."""

    checkpoints: tuple[str, ...]


@dataclass(frozen=True)
class Fence:
    """What the newest fence list of a run says."""

    attempt: int = 0
    """Whose it is; 0: there is none."""
    checkpoints: frozenset[str] = frozenset()

    def excludes(self, name: CheckpointName) -> bool:
        """Whether a fenced driver committed that checkpoint."""
        return name.attempt < self.attempt and str(name) not in self.checkpoints


def write_fence_list(store: Store, attempt: int, checkpoints: list[CheckpointName]) -> None:
    """Write down which checkpoints of earlier attempts exist as `attempt` begins."""
    written = FenceList(checkpoints=tuple(map(str, checkpoints)))
    store.create(_key(attempt), written.model_dump_json().encode())


def read_fence_list(store: Store) -> Fence:
    """What the newest fence list says. Raises CheckpointError if it cannot be read."""
    names = store.names(LEASES)
    newest = max((lease.attempt for lease in map(LeaseName.parse, names) if lease), default=0)
    lists = (found.attempt for found in map(FenceListName.parse, names) if found)
    # One of an attempt that has no lease is nobody's.
    attempt = max((number for number in lists if number <= newest), default=0)
    if not attempt:
        return Fence()
    found, _ = read_document(store, FenceList, _key(attempt), "a lease's fence list")
    return Fence(attempt, frozenset(found.checkpoints))


def _key(attempt: int) -> str:
    return f"{LEASES}/{FenceListName(attempt)}"
