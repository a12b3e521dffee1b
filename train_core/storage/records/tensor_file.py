"""The safetensors format: where each tensor lies in a file, written and read without a copy.

A file is the header's length (8 bytes, little-endian), the header (JSON, padded with blanks),
and the tensors' bytes one after another. Source: the format's own description in the safetensors
project. The library itself copies every tensor when it writes or reads bytes; here a file is
laid out once, and the state is copied straight to where it will lie.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train_core.errors import CheckpointError, ConfigError
from train_core.storage.records.documents import parse_json
from train_core.text.shown_text import shown_value

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of an element, by the format's name of the type."""

MAX_TENSORS = 50_000
"""In one file. A model of more would take minutes to copy, tensor by tensor."""
MAX_HEADER_BYTES = 32 * 2**20
"""The format itself allows 100 MB, which take a gigabyte of memory to parse."""
MAX_SIZE = 2**62
"""Dimensions and their products are smaller; torch counts in 64 bits."""
_MAX_DIMENSIONS = 64
_LENGTH_BYTES = 8
_METADATA = "__metadata__"


@dataclass(frozen=True)
class TensorRange:
    """A tensor in a file: its type by the format's name, its shape, and its bytes' range."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """In bytes from the beginning of the file."""
    stop: int


@dataclass(frozen=True)
class TensorFile:
    """The layout of a file: its header, the range of each tensor, its length, its metadata."""

    head: bytes
    ranges: dict[str, TensorRange]
    size_bytes: int
    metadata: dict[str, str]


def lay_out(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> TensorFile:
    """A file of tensors with these types and shapes, by name.

    Raises ConfigError if there are so many that the file would not be read again.
    """
    ordered = sorted(tensors, key=lambda name: (-DTYPE_BYTES[tensors[name][0]], name))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in ordered:
        dtype, shape = tensors[name]
        start, end = end, end + DTYPE_BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    if len(tensors) > MAX_TENSORS or len(text) > MAX_HEADER_BYTES - _LENGTH_BYTES:
        raise ConfigError(
            f"{len(tensors)} tensors with a header of {len(text)} bytes are too many for one file: "
            f"at most {MAX_TENSORS}, and {MAX_HEADER_BYTES} bytes. Give the checkpoint more "
            "shards (num_shards), or the model fewer tensors"
        )
    # The largest types come first, so that each tensor is aligned if the data is.
    text += b" " * (-len(text) % _LENGTH_BYTES)
    head = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    ranges = {
        name: TensorRange(
            header[name]["dtype"],
            tuple(header[name]["shape"]),
            *(len(head) + offset for offset in header[name]["data_offsets"]),
        )
        for name in ordered
    }
    return TensorFile(head, ranges, len(head) + end, dict(metadata))


def read_layout(data: memoryview, file: str) -> TensorFile:
    """The layout of a file that is in memory.

    Raises CheckpointError, naming `file`, if any of it lies about types, shapes or sizes.
    """
    begin = header_end(data[:_LENGTH_BYTES], len(data), file)
    return layout_of(data[:begin], len(data), file)


def header_end(beginning: bytes | memoryview, size_bytes: int, file: str) -> int:
    """Where the header ends of a file of that size, by its first 8 bytes. Raises as above."""
    length = int.from_bytes(beginning, "little")
    end = _LENGTH_BYTES + length
    said = ""
    if len(beginning) < _LENGTH_BYTES or end > size_bytes:
        said = f"its header of {length} bytes does not fit in the file's {size_bytes}"
    elif length > MAX_HEADER_BYTES:
        said = f"its header has {length} bytes, more than {MAX_HEADER_BYTES}"
    if said:
        raise CheckpointError(f"{file} is not a safetensors file: {said}")
    return end


def layout_of(head: bytes | memoryview, size_bytes: int, file: str) -> TensorFile:
    """The layout of a file of that size, by its beginning until the header's end. Raises so."""
    begin, refusal = len(head), f"{file} is not a safetensors file"
    header = parse_json(head[_LENGTH_BYTES:], refusal)
    if not isinstance(header, dict):
        raise CheckpointError(f"{refusal}: its header is no JSON object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{refusal}: its {_METADATA} is no JSON object")
    if len(header) > MAX_TENSORS:
        raise CheckpointError(f"{refusal}: it has {len(header)} tensors, more than {MAX_TENSORS}")
    try:
        ranges = {name: _range_of(name, entry, begin) for name, entry in header.items()}
    except ValueError as error:
        raise CheckpointError(f"{refusal}: {error}") from error
    end = begin
    for name, one in sorted(ranges.items(), key=lambda item: (item[1].start, item[1].stop)):
        expected = DTYPE_BYTES[one.dtype] * math.prod(one.shape)
        if one.start != end or one.stop - one.start != expected:
            raise CheckpointError(
                f"{refusal}: its header says that tensor {name!r} lies at bytes {one.start} to "
                f"{one.stop}, where {expected} bytes from {end} on are expected"
            )
        end = one.stop
    if end != size_bytes:
        raise CheckpointError(f"{refusal}: its tensors end at byte {end} of {size_bytes}")
    texts = {str(key): str(value) for key, value in metadata.items()}
    return TensorFile(bytes(head), ranges, size_bytes, texts)


def _range_of(name: str, entry: Any, begin: int) -> TensorRange:
    """Where the tensor lies, by its entry in the header. Raises ValueError if that cannot be."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, stop]}:
            numbers = [start, stop, *shape]
        case _:
            raise ValueError(
                f"tensor {name!r} has no dtype, shape and data_offsets, but {shown_value(entry)}"
            )
    are_sizes = all(type(number) is int and 0 <= number < MAX_SIZE for number in numbers)
    # Zeros aside: torch counts the strides of an empty tensor, too.
    fits = are_sizes and len(shape) <= _MAX_DIMENSIONS and math.prod(filter(None, shape)) < MAX_SIZE
    if dtype not in DTYPE_BYTES or not fits:
        raise ValueError(
            f"tensor {name!r} cannot have dtype {shown_value(dtype)}, "
            f"shape {shown_value(shape)} and data_offsets {shown_value([start, stop])}"
        )
    return TensorRange(dtype, tuple(shape), begin + start, begin + stop)
