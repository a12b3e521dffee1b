"""Large objects, on every storage: hashed on their way, put from and filled to where they lie."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from blake3 import blake3

from train_core.storage.store import Store

PART = 8 * 2**20


@pytest.mark.parametrize(
    "size", [0, 1, PART - 1, PART, PART + 1, 2 * PART, 40 * 2**20 + 3], ids="{}".format
)
def test_what_was_put_is_whole_and_hashed_on_its_way_in_and_out(store: Store, size: int) -> None:
    data = os.urandom(size)
    digest = blake3(data).hexdigest()
    assert store.put("folder/object", memoryview(data)) == digest
    assert store.size_bytes("folder/object") == size
    assert blake3(store.read("folder/object")).hexdigest() == digest
    into = bytearray(size)
    assert store.fill("folder/object", memoryview(into)) == digest
    assert into == data


def test_what_is_put_is_read_from_where_it_lies(store: Store) -> None:
    whole = bytearray(os.urandom(3 * PART))
    piece = memoryview(whole)[5 : 2 * PART + 5]
    assert store.put("object", piece) == blake3(piece).hexdigest()
    into = bytearray(3 * PART)
    store.fill("object", memoryview(into)[7 : 2 * PART + 7])
    assert into == bytes(7) + piece + bytes(PART - 7)


@pytest.mark.parametrize("size", [1, PART, PART + 10], ids="{}".format)
@pytest.mark.parametrize("more", [-PART, -1, 1, PART])
def test_what_is_larger_or_smaller_than_the_object_is_given_no_digest(
    store: Store, size: int, more: int
) -> None:
    data = os.urandom(size)
    store.put("object", memoryview(data))
    into = bytearray(max(size + more, 0))
    assert store.fill("object", memoryview(into)) == ""
    # No more is written than the object has, and no more than fits.
    assert into == (data + bytes(PART))[: len(into)]


def test_a_missing_object_fills_nothing(store: Store) -> None:
    into = bytearray(5)
    for wanted in (into, bytearray()):
        with pytest.raises(FileNotFoundError, match=f"^{store.url}/none does not exist$"):
            store.fill("none", memoryview(wanted))
    assert into == bytes(5)


def test_objects_are_put_and_filled_at_the_same_time(store: Store) -> None:
    def there_and_back(number: int) -> bool:
        data = os.urandom(PART + number)
        into = bytearray(len(data))
        digest = store.put(f"folder/{number}", memoryview(data))
        return store.fill(f"folder/{number}", memoryview(into)) == digest and into == data

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(there_and_back, range(4)))
