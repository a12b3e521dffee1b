"""The safetensors format, written and read by hand, against the library that defines it."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.words import PYTHONS_WORDS
from train_core.errors import CheckpointError
from train_core.rank.checkpoint.snapshot import DTYPES, tensors_in
from train_core.storage.records.tensor_file import DTYPE_BYTES, MAX_TENSORS, lay_out, read_layout

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__")
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
TENSORS = st.dictionaries(NAMES, st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES), max_size=6)


def a_file(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> bytearray:
    """A file of these tensors, each byte of them its own place's."""
    file = lay_out(tensors, {"format": "pt"})
    content = bytes(number % 251 for number in range(file.size_bytes - len(file.head)))
    return bytearray(file.head + content)


def buffer_of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@given(TENSORS)
def test_the_library_reads_what_was_laid_out(
    tensors: dict[str, tuple[str, tuple[int, ...]]],
) -> None:
    data = a_file(tensors)
    layout = read_layout(memoryview(data), "file")
    ours = tensors_in(buffer_of(data), layout)
    theirs = safetensors.torch.load(bytes(data))
    assert ours.keys() == theirs.keys() == tensors.keys()
    for name, tensor in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(ours[name]) == bits(tensor)
    assert layout.metadata == {"format": "pt"}


@given(st.dictionaries(NAMES, SHAPES, max_size=5))
def test_what_the_library_writes_is_read(shapes: dict[str, tuple[int, ...]]) -> None:
    written = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}
    data = safetensors.torch.save(written)
    found = tensors_in(buffer_of(data), read_layout(memoryview(data), "file"))
    assert found.keys() == written.keys()
    assert all(bits(found[name]) == bits(tensor) for name, tensor in written.items())


def test_every_type_of_the_format_has_its_size() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == DTYPE_BYTES


GOOD = {"a": ("F32", (2, 3)), "b": ("I64", (2,))}


def headed(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def with_header(change: str, value: object) -> bytes:
    data = a_file(GOOD)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["a"][change] = value
    text = json.dumps(header).encode()
    return headed(text) + bytes(data[8 + length :])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x80\x04\x95" + b"\0" * 40, id="a pickle"),
        pytest.param((2**62).to_bytes(8, "little") + b"{}", id="a header of 4 EiB"),
        pytest.param((100).to_bytes(8, "little") + b"{}", id="a header longer than the file"),
        pytest.param((2).to_bytes(8, "little") + b"[]", id="a header that is a list"),
        pytest.param((6).to_bytes(8, "little") + b"[" * 6, id="a header that is cut"),
        pytest.param(headed(b'{"a": []}'), id="a tensor that is a list"),
        pytest.param(headed(b'{"a": {"dtype": "F32"}}'), id="a tensor of no shape"),
        pytest.param(headed(b'{"__metadata__": []}'), id="metadata that are a list"),
        pytest.param(with_header("data_offsets", [0]), id="bytes without an end"),
        pytest.param(with_header("data_offsets", [0, 1, 2]), id="bytes with two ends"),
        pytest.param(with_header("dtype", []), id="a type that is a list"),
        pytest.param(with_header("shape", [2**40, 2**40]), id="a shape larger than its bytes"),
        pytest.param(with_header("shape", [-2, -3]), id="a negative shape"),
        pytest.param(with_header("shape", [2.0, 3]), id="half a row"),
        pytest.param(with_header("shape", [0, 2**40, 2**40]), id="an empty shape without end"),
        pytest.param(with_header("shape", [1] * 10**5), id="dimensions without end"),
        pytest.param(with_header("shape", [2**63]), id="a dimension of 64 bits"),
        pytest.param(with_header("shape", 6), id="a shape that is a number"),
        pytest.param(with_header("dtype", "F1024"), id="an unknown type"),
        pytest.param(with_header("data_offsets", [0, 2**50]), id="bytes behind the end"),
        pytest.param(with_header("data_offsets", [-8, 16]), id="bytes before the beginning"),
        pytest.param(with_header("data_offsets", [0, 24]), id="bytes of another tensor"),
        pytest.param(with_header("data_offsets", None), id="no bytes"),
        pytest.param(bytes(a_file(GOOD)) + b"\0", id="a byte more"),
        pytest.param(bytes(a_file(GOOD))[:-1], id="a byte less"),
    ],
)
def test_a_file_that_lies_is_refused(data: bytes) -> None:
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors is not a safetensors file"
    ) as why:
        read_layout(memoryview(data), "model.safetensors")
    # In evertrain's own words, and not in Python's.
    assert not PYTHONS_WORDS.search(str(why.value))
    assert len(str(why.value)) < 1000


def test_more_tensors_than_are_read_are_refused() -> None:
    one = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps({str(number): one for number in range(MAX_TENSORS + 1)}).encode()
    data = headed(text)
    with pytest.raises(CheckpointError, match="it has 50001 tensors, more than 50000"):
        read_layout(memoryview(data), "file")


@given(st.data())
def test_no_damage_leads_out_of_the_file(drawn: st.DataObject) -> None:
    data = a_file(GOOD)
    for _ in range(drawn.draw(st.integers(1, 3))):
        data[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))
    try:
        layout = read_layout(memoryview(data), "file")
    except CheckpointError:
        return
    for place in layout.ranges.values():
        assert len(layout.head) <= place.start <= place.stop <= len(data)
    tensors_in(buffer_of(data), layout)
