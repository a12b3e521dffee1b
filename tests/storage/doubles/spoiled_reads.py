"""A store whose first reads of some objects give other bytes than the object has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar

from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.store import Store


class SpoiledReads(Store):
    """Flips the last bit of what the first `bad_reads` reads of each object named give.

    The object itself stays as it is.
    """

    spoiled: ClassVar[tuple[str, ...]] = ()
    bad_reads: ClassVar[int] = 1
    read_so_far: ClassVar[Counter[str]] = Counter()

    @classmethod
    def spoil(cls, *keys: str, bad_reads: int = 1) -> None:
        """Spoil the next reads of the objects at these keys."""
        cls.spoiled, cls.bad_reads, cls.read_so_far = keys, bad_reads, Counter()

    def read(self, key: str, max_bytes: int | None = None) -> bytes:
        return self._seen(key, super().read(key, max_bytes))

    def piece(self, key: str, start: int, end: int) -> bytes:
        return self._seen(key, super().piece(key, start, end))

    def load(self, key: str, size_bytes: int) -> tuple[memoryview, str]:
        data, _ = super().load(key, size_bytes)
        seen = memoryview(bytearray(self._seen(key, bytes(data))))
        return seen, digest_of(seen)

    def download(self, key: str, local: str | Path) -> str:
        super().download(key, local)
        seen = self._seen(key, Path(local).read_bytes())
        Path(local).write_bytes(seen)
        return digest_of(seen)

    def _seen(self, key: str, data: bytes) -> bytes:
        if key not in self.spoiled or not data:
            return data
        self.read_so_far[key] += 1
        is_bad = self.read_so_far[key] <= self.bad_reads
        return data[:-1] + bytes([data[-1] ^ 1]) if is_bad else data
