"""The files of an input: hashed once in the driver, and verified by each worker as it reads them.

A file may be larger than memory. Its digest alone could be checked only by reading all of it, so
the digests of its blocks are made in the same pass: a reader of some rows verifies their blocks.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from functools import partial

from train_core.errors import DataError, StorageError
from train_core.storage.objects.digest_algorithm import digest_of, new_digest
from train_core.storage.objects.ranges import RangeReader
from train_core.storage.objects.store import Store

BLOCK_BYTES = 8 * 2**20
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class InputFile:
    """A file with rows to score, as it was when the input was opened, or a split."""

    name: str
    rows: int
    size_bytes: int = 0
    digest: str = ""
    """BLAKE3 of the content; empty where the input was opened without."""
    block_digests: bytes = field(default=b"", repr=False)
    """BLAKE3 of each BLOCK_BYTES of the content, one after the other; empty without digests."""


def hashed(store: Store, file: InputFile) -> InputFile:
    """The file with the digests of its content, which is read once, in bounded memory.

    Raises DataError if it was replaced or deleted since its size was listed.
    """
    whole, blocks, num_bytes = new_digest(), bytearray(), 0
    try:
        for block in store.chunks(file.name, BLOCK_BYTES):
            whole.update(block)
            blocks += _digest(block)
            num_bytes += len(block)
    except FileNotFoundError as error:
        raise changed(store, file) from error
    if num_bytes != file.size_bytes:
        raise changed(store, file)
    return replace(file, digest=whole.hexdigest(), block_digests=bytes(blocks))


def read_whole(store: Store, file: InputFile) -> bytes:
    """The file's content. Raises DataError if it has changed."""

    def read() -> bytes:
        try:
            data = store.read(file.name)
        except FileNotFoundError as error:
            raise changed(store, file) from error
        if digest_of(data) != file.digest:
            raise changed(store, file)
        return data

    return store.verified(file.name, read, DataError)


class VerifiedFile(RangeReader):
    """The file, open for reading in any order, with every byte verified by its digest.

    Blocks are read whole, and the last one is kept. Reading raises DataError if the file has
    changed.
    """

    def __init__(self, store: Store, file: InputFile) -> None:
        super().__init__(store, file.name, file.size_bytes)
        self._file = file
        self._kept = (-1, b"")

    def read(self, size: int = -1) -> bytes:
        """At most `size` of the next bytes; all of them if it is negative."""
        start = self._position
        end = self._size_bytes if size < 0 else min(start + size, self._size_bytes)
        data = io.BytesIO()
        for number in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES) if start < end else 0):
            before = number * BLOCK_BYTES
            data.write(memoryview(self._block(number))[max(start - before, 0) : end - before])
        self._position += data.tell()
        return data.getvalue()

    def _block(self, number: int) -> bytes:
        if self._kept[0] != number:
            data = self._store.verified(self._key, partial(self._read_block, number), DataError)
            self._kept = number, data
        return self._kept[1]

    def _read_block(self, number: int) -> bytes:
        start = number * BLOCK_BYTES
        data = self._piece(start, min(start + BLOCK_BYTES, self._size_bytes))
        first = number * _DIGEST_BYTES
        if _digest(data) != self._file.block_digests[first : first + _DIGEST_BYTES]:
            raise changed(self._store, self._file)
        return data

    def _piece(self, start: int, end: int) -> bytes:
        try:
            return self._store.piece(self._key, start, end)
        except FileNotFoundError as error:
            raise changed(self._store, self._file) from error
        except StorageError as error:
            # An object store refuses a range that begins behind the end of a shorter file.
            if self._size_now() != self._size_bytes:
                raise changed(self._store, self._file) from error
            raise

    def _size_now(self) -> int | None:
        try:
            return self._store.size_bytes(self._key)
        except FileNotFoundError:
            return None


def changed(store: Store, file: InputFile) -> DataError:
    """The error that the file has changed since the input was opened."""
    return DataError(
        f"{store.uri(file.name)} is not what it was when the input was opened: it was replaced or "
        "deleted meanwhile. Infer again, which reads what is there then, and write new data into "
        "files of their own"
    )


def _digest(block: bytes) -> bytes:
    digest = new_digest()
    digest.update(block)
    return bytes(digest.digest())
