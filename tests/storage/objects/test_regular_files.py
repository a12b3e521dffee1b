"""Links, pipes and devices in a storage: what reads evertrain's own files meets them at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from train_core.errors import CheckpointError
from train_core.storage.objects.store import DataStore, Store

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "storage"))
    store.write("folder/object", b"bytes")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "object").write_bytes(b"secret")
    return store


READS: dict[str, Callable[[Store, str], object]] = {
    "read": lambda store, key: store.read(key),
    "bounded": lambda store, key: store.read(key, 100),
    "chunks": lambda store, key: list(store.chunks(key)),
    "piece": lambda store, key: store.piece(key, 0, 1),
    "size": lambda store, key: store.size_bytes(key),
    "load": lambda store, key: store.load(key, 6),
    "download": lambda store, key: store.download(key, os.devnull),
    "digest": lambda store, key: store.digest(key, 6),
    "copy": lambda store, key: store.copy(key, store, "copy"),
    "link_or_copy": lambda store, key: store.link_or_copy(key, store, "copy"),
}


def linked(store: Store, outside: Path) -> None:
    os.symlink(outside / "object", store.path("folder/special"))


def pipe(store: Store, outside: Path) -> None:
    os.mkfifo(store.path("folder/special"))


def listening(store: Store, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(store.path("folder/special"))


def device(store: Store, outside: Path) -> None:
    try:
        os.mknod(store.path("folder/special"), 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


@pytest.mark.promise("untrusted-files")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("make", [linked, pipe, listening, device])
def test_what_is_no_regular_file_is_refused_at_once(
    store: Store, tmp_path: Path, make: Callable[..., None], read: Callable[[Store, str], object]
) -> None:
    make(store, tmp_path / "outside")
    with pytest.raises(CheckpointError, match=r"folder/special is .*evertrain makes none"):
        read(store, "folder/special")
    assert store.names() == ["folder"]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_link_on_the_way_to_a_file_is_not_followed(
    store: Store, tmp_path: Path, read: Callable[[Store, str], object]
) -> None:
    os.symlink(tmp_path / "outside", store.path("folder/way"))
    with pytest.raises(CheckpointError, match=r"reached by the link .*folder/way; evertrain makes"):
        read(store, "folder/way/object")
    assert store.names() == ["folder"]


def test_the_folder_itself_may_be_a_link(store: Store, tmp_path: Path) -> None:
    os.symlink(store.url, tmp_path / "runs")
    runs = Store(str(tmp_path / "runs"))
    assert runs.read("folder/object") == runs.read("folder/object", 5) == b"bytes"
    assert runs.size_bytes("folder/object") == 5


def test_a_users_data_may_be_behind_links(store: Store, tmp_path: Path) -> None:
    os.symlink(tmp_path / "outside", store.path("folder/way"))
    os.symlink(store.path("folder/way/object"), store.path("link"))
    data = DataStore(store.url)
    for key in ("link", "folder/way/object"):
        assert data.read(key) == data.child("").read(key) == b"secret"
        assert bytes(data.load(key, 6)[0]) == b"".join(data.chunks(key)) == b"secret"
        assert data.size_bytes(key) == 6


def test_no_more_is_read_than_is_allowed(store: Store) -> None:
    assert store.read("folder/object", 5) == b"bytes"
    with pytest.raises(CheckpointError, match="at most 4"):
        store.read("folder/object", 4)
    with open(store.path("large"), "wb") as file:
        file.truncate(2**40)
    with pytest.raises(CheckpointError, match="at most 100"):
        store.read("large", 100)


def test_what_is_missing_or_a_folder_is_no_object(store: Store) -> None:
    for key in ("none", "none/object", "folder", "folder/object/below"):
        for read in READS.values():
            with pytest.raises(FileNotFoundError, match="does not exist"):
                read(store, key)


def test_a_pipe_in_the_way_of_what_is_created_once_is_somebody_elses(store: Store) -> None:
    os.mkfifo(store.path("taken"))
    with pytest.raises(FileExistsError):
        store.create("taken", b"mine")
