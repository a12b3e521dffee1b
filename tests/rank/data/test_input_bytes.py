"""What is read of a large input: little to check it, all of it to hash it, blocks to score it."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.rank.data.rows import only_rows
from tests.rank.data.test_inputs import asks, opened
from tests.workloads.idx_files import format_idx
from train_core.errors import DataError
from train_core.rank.data.formats import ParquetRows
from train_core.rank.data.input_files import BLOCK_BYTES
from train_core.rank.data.inputs import open_input
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.ranges import RangeReader
from train_core.storage.objects.store import Store
from train_core.workloads.idx import IdxRows

_NUM_ROWS = 3_000_000
_GROUP_ROWS = 250_000


class CountedFileSystem(MemoryFileSystem):
    """fsspec's own storage in memory, with a count of the bytes that are read from it."""

    protocol = ("counted",)
    num_bytes: ClassVar[int] = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("counted://"))
        return stripped

    def cat_file(self, path: str, *bounds: Any, **options: Any) -> bytes:
        data: bytes = super().cat_file(path, *bounds, **options)
        CountedFileSystem.num_bytes += len(data)
        return data


fsspec.register_implementation("counted", CountedFileSystem, clobber=True)


@pytest.fixture(scope="module")
def large() -> bytes:
    """A Parquet file of 48 MB, in twelve row groups, whose values do not compress."""
    draw = np.random.default_rng(0)
    table = pa.table({"age": draw.random(_NUM_ROWS), "size": draw.random(_NUM_ROWS)})
    data = io.BytesIO()
    pq.write_table(table, data, row_group_size=_GROUP_ROWS, compression="none")
    return data.getvalue()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A folder of the test's own, of which it is counted what is read."""
    return Store(f"counted://{tmp_path.name}")


def num_read(before: int = 0) -> int:
    return CountedFileSystem.num_bytes - before


@pytest.mark.promise("input-refused")
def test_a_check_reads_a_small_part_of_large_files(store: Store, large: bytes) -> None:
    store.write("a.parquet", large)
    store.write("b.parquet", large)
    before = num_read()
    assert open_input(store.url, asks()).num_rows == 2 * _NUM_ROWS
    assert num_read(before) < len(large) / 10


def test_a_check_reads_the_beginning_of_a_packed_file(store: Store) -> None:
    images = np.random.default_rng(0).integers(0, 255, (1000, 50, 50), np.uint8)
    store.write("a-idx3-ubyte.gz", gzip.compress(format_idx(images), mtime=0))
    before = num_read()
    assert open_input(store.url, asks("image")).num_rows == 1000
    assert num_read(before) < 10_000


@pytest.mark.promise("predictions-input")
def test_digests_are_made_in_one_pass(store: Store, large: bytes) -> None:
    store.write("a.parquet", large)
    found = open_input(store.url, asks())
    before = num_read()
    hashed = opened(store.url, asks())
    assert num_read(before) < 1.1 * len(large)
    (file,) = hashed.files
    assert (file.digest, file.size_bytes) == (digest_of(large), len(large))
    assert hashed.digest == digest_of(f"a.parquet\0{len(large)}\0{file.digest}\n".encode())
    assert not found.files[0].digest


def test_a_few_rows_are_scored_without_reading_the_others(store: Store, large: bytes) -> None:
    store.write("a.parquet", large)
    found = opened(store.url, asks())
    before = num_read()
    ids, columns = only_rows(found, asks(), range(_NUM_ROWS - 2, _NUM_ROWS))
    assert ids == [f"a.parquet#{_NUM_ROWS - 2}", f"a.parquet#{_NUM_ROWS - 1}"]
    expected = pq.read_table(pa.BufferReader(large))["age"].to_numpy()[-2:]
    np.testing.assert_array_equal(columns["age"], expected)
    assert num_read(before) <= 3 * BLOCK_BYTES
    before = num_read()
    only_rows(found, asks(), range(_NUM_ROWS - 4, _NUM_ROWS - 2))
    assert num_read(before) == 0, "the row group was kept"


@pytest.mark.promise("input-replaced")
def test_what_was_replaced_is_found_where_it_is_read(store: Store, large: bytes) -> None:
    store.write("a.parquet", large)
    found = opened(store.url, asks())
    middle = len(large) // 2
    store.write("a.parquet", large[:middle] + bytes(8) + large[middle + 8 :])
    only_rows(found, asks(), range(2))
    with pytest.raises(DataError, match=r"a\.parquet is not what it was when the input was opened"):
        only_rows(found, asks(), range(_NUM_ROWS // 2 - 1, _NUM_ROWS // 2 + 1))


@pytest.mark.promise("input-replaced")
@pytest.mark.parametrize("size_bytes", [0, 100, BLOCK_BYTES, 2 * BLOCK_BYTES + 1])
def test_a_file_that_became_shorter_is_not_read(
    size_bytes: int, storage_url: str, large: bytes
) -> None:
    store = Store(storage_url)
    store.write("a.parquet", large)
    found = opened(storage_url, asks())
    store.write("a.parquet", large[:size_bytes])
    with pytest.raises(DataError, match=r"a\.parquet is not what it was when the input was opened"):
        only_rows(found, asks(), range(_NUM_ROWS - 2, _NUM_ROWS))


@pytest.mark.parametrize("rows", [range(1), range(2, 4), range(3, 10), range(10), range(9, 10)])
def test_rows_are_those_of_the_whole_table(rows: range, tmp_path: Path) -> None:
    numbers = [0, 1, None, 3, 4, 5, 6, 7, 8, 9]
    table = pa.table(
        {
            "sparse": pa.array(numbers, pa.int64()),
            "named": pa.array([f"n{i}" for i in numbers]).dictionary_encode(),
            "nested": [[i, i] for i in range(10)],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    store = Store(str(tmp_path))
    opened_rows = ParquetRows(RangeReader(store, "a.parquet", store.size_bytes("a.parquet")), "a")
    for part in (rows, range(10), rows):
        found, whole = opened_rows.read(part), table.slice(part.start, len(part))
        for name in table.column_names:
            np.testing.assert_array_equal(
                np.asarray(found[name].to_pylist()), np.asarray(whole[name].to_pylist())
            )
        sparse = whole["sparse"].to_numpy()
        assert found["sparse"].to_numpy().dtype == sparse.dtype
        assert list(found["named"].to_numpy()) == list(whole["named"].to_numpy())


def idx_rows(data: bytes, name: str = "a-idx3-ubyte.gz") -> IdxRows:
    return IdxRows(io.BytesIO(data), len(data), name)


@pytest.mark.parametrize("name", ["a-idx3-ubyte", "a-idx3-ubyte.gz"])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_rows_of_idx_are_read_in_any_order(name: str, kind: type) -> None:
    images = np.arange(60).reshape(10, 3, 2).astype(kind)
    data = format_idx(images)
    found = idx_rows(gzip.compress(data, mtime=0) if name.endswith(".gz") else data, name)
    assert found.num_rows == 10
    for rows in (range(4, 7), range(2), range(7, 10), range(10)):
        np.testing.assert_array_equal(found.read(rows), images[rows.start : rows.stop])


def packed(data: bytes) -> bytes:
    """The same bytes in every process of the tests: without the time."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (packed(format_idx(np.zeros((9, 9, 9), np.uint8))[:-1]), "is truncated"),
        (packed(format_idx(np.zeros((9, 9, 9), np.uint8)) + b"x"), "has trailing bytes"),
        (
            packed(format_idx(np.arange(729, dtype=np.int16).reshape(9, 9, 9)))[:-20],
            "is corrupt",
        ),
        (packed(b"no idx"), "is not an IDX file"),
        (b"no gzip", "is corrupt"),
    ],
    ids=["truncated", "trailing bytes", "cut", "no IDX", "no gzip"],
)
def test_a_packed_file_is_whole_at_its_end(data: bytes, told: str) -> None:
    with pytest.raises(DataError, match=rf"a-idx3-ubyte\.gz {told}"):
        idx_rows(data).read(range(8, 9))
