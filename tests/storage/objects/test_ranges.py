"""What a folder's listing tells, and objects that are read piece by piece."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from tests.web import served
from train_core.errors import StorageError
from train_core.storage.objects.ranges import RangeReader
from train_core.storage.objects.retry_policy import RetryPolicy
from train_core.storage.objects.store import Store


def test_a_listing_has_the_sizes_of_all_objects_and_no_folders(storage_url: str) -> None:
    store = Store(storage_url)
    store.write("b", b"12345")
    store.write("a", b"")
    store.write("below/c", b"123")
    assert store.sizes() == {"a": 0, "b": 5, "below/c": 3}
    assert list(store.sizes()) == ["a", "b", "below/c"]
    assert store.sizes("below") == {"c": 3}
    assert store.sizes("nowhere") == {}
    assert Store(store.uri("b")).sizes() == {}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address of a plain HTTP server of a folder with two files, one in a folder of its own."""
    (tmp_path / "below").mkdir()
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "below/c").write_bytes(b"123")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with served(handler) as url:
        yield url


def test_a_web_servers_files_are_listed_with_their_sizes(web: str) -> None:
    assert Store(web).sizes() == {"a": 2, "below/c": 3}
    assert Store(f"{web}/below").sizes() == {"c": 3}
    assert Store(f"{web}/a").sizes() == {}
    assert Store(web).size_bytes("a") == 2


def test_a_server_that_is_away_is_no_empty_folder() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(StorageError):
            Store(url, RetryPolicy(budget_s=1)).sizes()


@pytest.mark.parametrize(("start", "end"), [(0, 10), (3, 7), (9, 10), (4, 4)])
def test_a_piece_is_what_was_asked_for(start: int, end: int, storage_url: str) -> None:
    store, data = Store(storage_url), bytes(range(10))
    store.write("a", data)
    assert store.piece("a", start, end) == data[start:end]


def test_a_range_reader_reads_as_a_file_does(storage_url: str) -> None:
    store, data = Store(storage_url), os.urandom(1000)
    store.write("a", data)
    file, expected = RangeReader(store, "a", len(data)), io.BytesIO(data)
    for offset, whence, size in ((0, 0, 10), (5, 1, 10), (-8, 2, 100), (990, 0, -1), (2000, 0, 5)):
        assert file.seek(offset, whence) == expected.seek(offset, whence)
        assert file.read(size) == expected.read(size)
        assert file.tell() == expected.tell()
