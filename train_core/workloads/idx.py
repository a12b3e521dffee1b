"""IDX files, the format of MNIST and its kin, read from any fsspec URL.

Format: two zero bytes, a type code, the number of dimensions, each dimension as a big-endian
32-bit integer, then the values, big-endian, in C order (Y. LeCun, C. Cortes, C. Burges: The
MNIST database of handwritten digits).
"""

from __future__ import annotations

import gzip
import math
import posixpath
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from train_core.datasets.files import DataFile
from train_core.errors import DataError
from train_core.storage.objects.store import DataStore, Store

PACKED = ".gz"
_DTYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}

# More than any header has: four bytes, and four for each of at most 255 dimensions.
_HEADER_BYTES = 4096


def read_idx(folder: str, name: str) -> npt.NDArray[Any]:
    """The array in the file `name`, or `name`.gz, of the folder at an fsspec URL.

    Bytes are returned as a read-only view of what was read, other types in native byte order.
    Raises DataError if neither file exists or if the one found is not a whole IDX file.
    """
    store = DataStore(folder)
    for file in (name, f"{name}{PACKED}"):
        with suppress(FileNotFoundError):
            return parse_idx_file(store.read(file), store.uri(file))
    raise missing_idx(folder, name)


def pick_idx(files: Iterable[DataFile], folder: str, name: str) -> npt.NDArray[Any]:
    """The array in the file `name`, or `name`.gz, of those that a workload named in `folder`.

    Raises DataError as `read_idx`, and if the file is not what was recorded.
    """
    found = {posixpath.basename(file.url): file for file in files}
    file = found.get(name) or found.get(f"{name}{PACKED}")
    if file is None:
        raise missing_idx(folder, name)
    return parse_idx_file(file.read(), file.url)


def missing_idx(folder: str, name: str) -> DataError:
    """The error that neither spelling of a file is there."""
    return DataError(
        f"{DataStore(folder).uri(name)} is missing, and so is {name}{PACKED} beside it: "
        "give the URL of the folder that has one of them"
    )


def parse_idx_file(data: bytes, source: str) -> npt.NDArray[Any]:
    """As `parse_idx`, of a file that is packed if its name, `source`, ends with .gz."""
    return parse_idx(_gunzip(data, source) if source.endswith(PACKED) else data, source)


def parse_idx(data: bytes, source: str) -> npt.NDArray[Any]:
    """The array that `data` holds; `source` names it in the DataError if it is malformed."""
    dtype, shape, header_bytes = _parse_header(data, len(data), source)
    values = np.frombuffer(data, dtype, offset=header_bytes).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=False)


def _parse_header(
    data: bytes, size_bytes: int | None, source: str
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """The type and shape that the beginning of a file tells, and the header's size in bytes.

    The file's size is checked where it is known.
    """
    if len(data) < 4:
        raise DataError(f"{source} is truncated: expected 4 bytes of magic, found {len(data)}")
    code, num_dimensions = data[2], data[3]
    if data[:2] != b"\0\0" or code not in _DTYPES or num_dimensions == 0:
        raise DataError(
            f"{source} is not an IDX file: expected a magic of 00 00, a type code "
            f"(08, 09, 0b, 0c, 0d or 0e) and a number of dimensions, found {data[:4].hex(' ')}"
        )
    header_bytes = 4 + 4 * num_dimensions
    if len(data) < header_bytes:
        raise DataError(
            f"{source} is truncated: expected {header_bytes} bytes of header "
            f"for {num_dimensions} dimensions, found {len(data)}"
        )
    dtype, shape = _DTYPES[code], struct.unpack_from(f">{num_dimensions}I", data, 4)
    expected_bytes = header_bytes + math.prod(shape) * dtype.itemsize
    if size_bytes is not None and size_bytes != expected_bytes:
        fault = "is truncated" if size_bytes < expected_bytes else "has trailing bytes"
        raise DataError(
            f"{source} {fault}: expected {expected_bytes} bytes "
            f"for {' x '.join(map(str, shape))} values, found {size_bytes}"
        )
    return dtype, shape, header_bytes


def idx_header(store: Store, name: str, size_bytes: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type and shape of the array in a file, read from its beginning alone.

    Raises DataError if that is none of an IDX file, or of one of another size.
    """
    source, start = store.uri(name), store.piece(name, 0, min(size_bytes, _HEADER_BYTES))
    unpacked_bytes: int | None = size_bytes
    if name.endswith(PACKED):
        try:
            start = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, _HEADER_BYTES)
        except zlib.error as error:
            raise DataError(
                f"{source} is corrupt: no gzip stream begins there ({error})"
            ) from error
        unpacked_bytes = None
    return _parse_header(start, unpacked_bytes, source)[:2]


class Readable(Protocol):
    """A file that is open for reading in any order."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, as many as are asked for and there."""
        ...

    def seek(self, offset: int, /) -> int:
        """Read from there on."""
        ...


class IdxRows:
    """The rows of an IDX file, read from an open file of `size_bytes` a range at a time.

    It is packed if its name, `source`, ends with .gz: rows are then read fastest in their order.
    Raises DataError if it is not a whole IDX file; of a packed one, its size is known at its end.
    """

    def __init__(self, file: Readable, size_bytes: int, source: str) -> None:
        self._source = source
        is_packed = source.endswith(PACKED)
        self._file: Readable = gzip.GzipFile(fileobj=file) if is_packed else file
        start = self._read(0, _HEADER_BYTES)
        known = None if is_packed else size_bytes
        self._dtype, self._shape, self._header_bytes = _parse_header(start, known, source)

    @property
    def num_rows(self) -> int:
        """The first dimension."""
        return self._shape[0]

    def read(self, rows: range) -> npt.NDArray[Any]:
        """Consecutive rows, in native byte order."""
        shape = len(rows), *self._shape[1:]
        row_bytes = math.prod(shape[1:]) * self._dtype.itemsize
        size_bytes = len(rows) * row_bytes
        # What follows the last row is looked at, too.
        is_last = rows.stop == self.num_rows
        data = self._read(self._header_bytes + rows.start * row_bytes, size_bytes + is_last)
        if len(data) != size_bytes:
            fault = "is truncated" if len(data) < size_bytes else "has trailing bytes"
            raise DataError(
                f"{self._source} {fault}: expected {size_bytes} bytes for rows {rows.start} to "
                f"{rows.stop - 1} of {' x '.join(map(str, self._shape))} values"
            )
        values = np.frombuffer(data, self._dtype).reshape(shape)
        return values.astype(self._dtype.newbyteorder("="), copy=False)

    def _read(self, start: int, size_bytes: int) -> bytes:
        try:
            self._file.seek(start)
            return self._file.read(size_bytes)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(
                f"{self._source} is corrupt: expected a whole gzip stream ({error})"
            ) from error


def _gunzip(data: bytes, source: str) -> bytes:
    try:
        return gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{source} is corrupt: expected a whole gzip stream, found {len(data)} bytes that "
            f"do not unpack ({error})"
        ) from error
