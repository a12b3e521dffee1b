"""Large objects, on every storage: hashed on their way, put from where they lie."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from blake3 import blake3

from train_core.storage.objects.store import Store

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
    assert store.load("folder/object", size) == (data, digest)
    assert store.digest("folder/object", size) == digest


def test_what_is_put_is_read_from_where_it_lies(store: Store) -> None:
    whole = bytearray(os.urandom(3 * PART))
    piece = memoryview(whole)[5 : 2 * PART + 5]
    assert store.put("object", piece) == blake3(piece).hexdigest()
    assert store.read("object") == piece


@pytest.mark.parametrize("size", [1, PART, PART + 10], ids="{}".format)
@pytest.mark.parametrize("more", [-PART, -1, 1, PART])
def test_what_is_larger_or_smaller_than_the_object_is_given_no_digest(
    store: Store, size: int, more: int
) -> None:
    data = os.urandom(size)
    store.put("object", memoryview(data))
    assert store.load("object", max(size + more, 0))[1] == ""
    assert store.digest("object", max(size + more, 0)) == ""


def test_a_missing_object_is_not_loaded(store: Store) -> None:
    for size in (0, 5):
        with pytest.raises(FileNotFoundError, match=f"^{store.url}/none does not exist$"):
            store.load("none", size)


def test_objects_are_put_and_loaded_at_the_same_time(store: Store) -> None:
    def there_and_back(number: int) -> bool:
        data = os.urandom(PART + number)
        digest = store.put(f"folder/{number}", memoryview(data))
        return store.load(f"folder/{number}", len(data)) == (data, digest)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(there_and_back, range(4)))


def test_what_is_loaded_may_be_changed_and_the_object_stays_as_it_is(store: Store) -> None:
    store.put("object", memoryview(b"bytes"))
    data, _ = store.load("object", 5)
    data[:] = b"other"
    assert store.read("object") == b"bytes"
    # On a disk it outlives the object's name.
    store.delete("object")
    assert data == b"other"
