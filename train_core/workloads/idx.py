"""IDX files, the format of MNIST and its kin, read from any fsspec URL.

Format: two zero bytes, a type code, the number of dimensions, each dimension as a big-endian
32-bit integer, then the values, big-endian, in C order (Y. LeCun, C. Cortes, C. Burges: The
MNIST database of handwritten digits).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from train_core.errors import DataError
from train_core.storage.store import Store

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
    store = Store(folder)
    try:
        return parse_idx(store.read(name), store.uri(name))
    except FileNotFoundError:
        packed = f"{name}.gz"
    try:
        data = store.read(packed)
    except FileNotFoundError:
        raise DataError(
            f"{store.uri(name)} is missing, and so is {packed} beside it: "
            "give the URL of the folder that has one of them"
        ) from None
    return parse_idx(_gunzip(data, store.uri(packed)), store.uri(packed))


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


def format_idx(array: npt.NDArray[Any]) -> bytes:
    """The IDX file that holds `array`: what `parse_idx` reads. Raises ValueError for its type."""
    for code, dtype in _DTYPES.items():
        if dtype == array.dtype.newbyteorder(">"):
            header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
            return header + array.astype(dtype).tobytes()
    names = ", ".join(dtype.name for dtype in _DTYPES.values())
    raise ValueError(f"IDX has no type for {array.dtype}: use one of {names}")


def parse_idx_file(data: bytes, source: str) -> npt.NDArray[Any]:
    """The array of a whole file, which is packed if its name `source` ends with .gz."""
    return parse_idx(_gunzip(data, source) if source.endswith(".gz") else data, source)


def idx_header(store: Store, name: str, size_bytes: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type and shape of the array in a file, read from its beginning alone.

    Raises DataError if that is none of an IDX file, or of one of another size.
    """
    source, start = store.uri(name), store.piece(name, 0, min(size_bytes, _HEADER_BYTES))
    unpacked_bytes: int | None = size_bytes
    if name.endswith(".gz"):
        try:
            start = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, _HEADER_BYTES)
        except zlib.error as error:
            raise DataError(
                f"{source} is corrupt: no gzip stream begins there ({error})"
            ) from error
        unpacked_bytes = None
    return _parse_header(start, unpacked_bytes, source)[:2]


def _gunzip(data: bytes, source: str) -> bytes:
    try:
        return gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{source} is corrupt: expected a whole gzip stream, found {len(data)} bytes that "
            f"do not unpack ({error})"
        ) from error
