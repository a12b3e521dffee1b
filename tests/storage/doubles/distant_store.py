"""A store of another node's disk."""

from __future__ import annotations

from tests.storage.doubles.faulty_store import FaultyStore


class DistantStore(FaultyStore):
    """One whose files have to be downloaded, on whatever storage they are; it counts operations."""

    @property
    def is_local(self) -> bool:
        return False
