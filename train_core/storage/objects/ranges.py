"""An object as a file that is read piece by piece: for a library that needs only a part of it."""

from __future__ import annotations

import io
import os

from train_core.storage.objects.store import Store


class RangeReader(io.RawIOBase):
    """A file of which each read asks the storage for that range of bytes.

    `size_bytes` is the object's size, as a listing has it.
    """

    def __init__(self, store: Store, key: str, size_bytes: int) -> None:
        super().__init__()
        self._store, self._key, self._size_bytes = store, key, size_bytes
        self._position = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read in any order."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Read from there on."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as many as are asked for and there."""
        end = self._size_bytes if size < 0 else min(self._position + size, self._size_bytes)
        data = self._store.piece(self._key, self._position, end)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        """All bytes that follow."""
        return self.read()
