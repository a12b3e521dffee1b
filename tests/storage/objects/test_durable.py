"""What Store calls durable was synced to the disk: bytes, names, and the folders on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.doubles.syncs import Named, Syncs, recorded
from train_core.storage.objects.backends.disk_files import BLOCK_BYTES
from train_core.storage.objects.store import Store

DATA = os.urandom(3 * BLOCK_BYTES + 5)  # whole blocks, and a rest
ACTIONS: dict[str, Callable[[Store, str], object]] = {
    "write": lambda store, key: store.write(key, DATA, durable=True),
    "create": lambda store, key: store.create(key, DATA),
    "put": lambda store, key: store.put(key, memoryview(DATA)),
    "upload": lambda store, key: store.upload(store.path("source"), key),
    "copy": lambda store, key: store.copy("source", store, key),
    "link_or_copy": lambda store, key: store.link_or_copy("source", store, key),
}
REPLACING = [kind for kind in ACTIONS if kind not in ("create", "put")]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A folder whose object `source` the disk need not have yet."""
    store = Store(str(tmp_path / "storage"))
    store.write("source", DATA)
    return store


@pytest.fixture
def syncs(store: Store, monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return recorded(monkeypatch)


@pytest.mark.parametrize("kind", ACTIONS)
def test_an_object_is_kept_with_its_bytes_its_name_and_its_folders(
    store: Store, syncs: Syncs, kind: str
) -> None:
    ACTIONS[kind](store, "a/b/object")
    assert store.read("a/b/object") == DATA
    assert syncs.missing(store.path("a/b/object"), below=store.url) == []


@pytest.mark.parametrize("kind", REPLACING)
def test_what_replaces_an_object_is_kept_before_it_gets_the_name(
    store: Store, syncs: Syncs, kind: str
) -> None:
    store.write("object", b"old")
    ACTIONS[kind](store, "object")
    path = store.path("object")
    assert syncs.missing(path, below=store.url) == []
    # Else a power failure could leave the name on a file without bytes.
    assert syncs.have_bytes(path, before=syncs.when_named(path))


def test_what_is_created_is_kept_before_it_gets_its_name(store: Store, syncs: Syncs) -> None:
    store.create("object", DATA)
    path = store.path("object")
    assert Named(path) in syncs.events
    assert syncs.have_bytes(path, before=syncs.when_named(path))


def test_a_new_folder_of_a_storage_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = recorded(monkeypatch)
    store = Store(str(tmp_path / "above" / "storage"))
    store.create("object", DATA)
    assert syncs.missing(store.path("object"), below=str(tmp_path)) == []


def test_a_copy_where_links_do_not_reach_is_kept(
    store: Store, other_disk: Path, syncs: Syncs
) -> None:
    there = Store(str(other_disk))
    store.link_or_copy("source", there, "a/object")
    assert syncs.missing(there.path("a/object"), below=there.url) == []


def test_what_need_not_be_kept_waits_for_no_disk(store: Store, syncs: Syncs) -> None:
    store.write("object", DATA)
    assert syncs.events == [Named(store.path("object"))]
    assert syncs.missing(store.path("object"), below=store.url) == [
        f"the bytes of {store.path('object')}",
        f"the name of {store.path('object')}",
    ]
