from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.workloads.idx_files import format_idx
from train_core.errors import DataError
from train_core.storage.objects.store import Store
from train_core.workloads.idx import parse_idx, read_idx

NAME = "train-images-idx3-ubyte"
IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
DATA = format_idx(IMAGES)


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@given(
    hnp.arrays(
        dtype=st.sampled_from(["u1", "i1", "i2", "i4", "f4", "f8", ">i2", ">f8"]),
        shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    )
)
def test_what_is_formatted_is_parsed_again(array: npt.NDArray[Any]) -> None:
    parsed = parse_idx(format_idx(array), "file")
    np.testing.assert_array_equal(parsed, array)
    assert parsed.dtype == array.dtype.newbyteorder("=")
    assert parsed.dtype.isnative


def test_the_bytes_are_those_of_the_published_format() -> None:
    assert DATA[:16].hex() == "00000803000000020000000300000004"
    assert DATA[16:] == bytes(range(24))


@pytest.mark.parametrize("size", range(len(DATA)))
def test_every_truncation_says_how_many_bytes_were_expected_and_found(size: int) -> None:
    with pytest.raises(DataError) as error:
        parse_idx(DATA[:size], "some/file")
    expected = 4 if size < 4 else 16 if size < 16 else len(DATA)
    message = one_line(error)
    assert message.startswith("some/file is truncated")
    assert f"expected {expected} bytes" in message
    assert message.endswith(f"found {size}")


def test_every_truncation_of_a_gzip_file_is_noticed(tmp_path: Path) -> None:
    packed = gzip.compress(DATA)
    file = tmp_path / f"{NAME}.gz"
    for size in range(len(packed)):
        file.write_bytes(packed[:size])
        with pytest.raises(DataError) as error:
            read_idx(str(tmp_path), NAME)
        assert str(file) in one_line(error)


@pytest.mark.promise("mnist-files")
def test_every_altered_byte_of_a_gzip_file_is_noticed_or_harmless(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(DATA))
    file = tmp_path / f"{NAME}.gz"
    noticed = 0
    for place in range(len(packed)):
        packed[place] ^= 0xFF
        file.write_bytes(packed)
        packed[place] ^= 0xFF
        try:
            read = read_idx(str(tmp_path), NAME)
        except DataError:
            noticed += 1
        else:
            np.testing.assert_array_equal(read, IMAGES)
    assert noticed >= len(packed) - 6, "only the time stamp and two flags may differ unseen"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"PK\3\4" + DATA[4:], "50 4b 03 04"),
        (b"\0\0\x07\3" + DATA[4:], "00 00 07 03"),
        (b"\0\0\x08\0" + DATA[4:], "00 00 08 00"),
    ],
)
def test_another_magic_is_shown(data: bytes, found: str) -> None:
    with pytest.raises(DataError) as error:
        parse_idx(data, "some/file")
    assert one_line(error).endswith(f"found {found}")


def test_trailing_bytes_are_counted() -> None:
    with pytest.raises(DataError) as error:
        parse_idx(DATA + b"!", "some/file")
    assert one_line(error) == (
        "some/file has trailing bytes: expected 40 bytes for 2 x 3 x 4 values, found 41"
    )


def test_a_huge_claim_in_the_header_allocates_nothing() -> None:
    with pytest.raises(DataError, match="is truncated"):
        parse_idx(b"\0\0\x08\3" + b"\xff" * 12, "some/file")


@pytest.mark.promise("mnist-files")
@pytest.mark.parametrize("packed", [True, False])
def test_plain_and_packed_files_are_read_from_any_storage(storage_url: str, packed: bool) -> None:
    name, data = (f"{NAME}.gz", gzip.compress(DATA)) if packed else (NAME, DATA)
    Store(storage_url).write(name, data)
    np.testing.assert_array_equal(read_idx(storage_url, NAME), IMAGES)


def test_a_missing_file_names_both_spellings(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_idx(str(tmp_path), NAME)
    message = one_line(error)
    assert f"{tmp_path}/{NAME} is missing" in message
    assert f"{NAME}.gz" in message
