"""What only a disk has: links, half-written files, files in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from train_core.errors import ConfigError, StorageError
from train_core.storage.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "storage"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the store's, with a file that nobody may touch."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "object").write_bytes(b"precious")
    return tmp_path / "outside"


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another filesystem than tmp_path's."""
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second filesystem at /dev/shm")
    folder = tempfile.mkdtemp(dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)


def test_a_linked_object_takes_no_room(store: Store) -> None:
    store.write("object", b"bytes")
    store.link_or_copy("object", store.child("below"), "again")
    assert os.path.samefile(store.path("object"), store.path("below/again"))
    store.link_or_copy("object", store, "below/again")  # onto itself: nothing is left over
    assert os.listdir(store.path("below")) == ["again"]


def test_where_links_do_not_reach_the_object_is_copied(store: Store, other_disk: Path) -> None:
    store.write("object", b"bytes")
    target = Store(str(other_disk))
    store.link_or_copy("object", target, "folder/copy")
    assert target.read("folder/copy") == b"bytes"
    assert os.listdir(other_disk / "folder") == ["copy"]


def test_a_link_is_deleted_and_not_what_it_points_to(store: Store, outside: Path) -> None:
    store.write("folder/object", b"")
    os.symlink(outside, store.path("link"))
    os.symlink(outside, store.path("folder/link"))
    os.symlink(outside / "object", store.path("folder/file"))
    os.symlink(outside / "nothing", store.path("folder/dangling"))
    store.delete("link/")
    store.delete("folder")
    assert store.names() == []
    assert (outside / "object").read_bytes() == b"precious"


@pytest.mark.parametrize("key", ["link/object", "link/.", "folder/link/object", "link/none"])
def test_deleting_does_not_follow_a_link_out_of_the_folder(
    store: Store, outside: Path, key: str
) -> None:
    store.write("folder/object", b"")
    os.symlink(outside, store.path("link"))
    os.symlink(outside, store.path("folder/link"))
    with pytest.raises(ValueError, match=r"leaves the folder .*: a link on the way leads to"):
        store.delete(key)
    assert (outside / "object").read_bytes() == b"precious"


def test_deleting_follows_links_that_stay_inside(store: Store, tmp_path: Path) -> None:
    store.write("folder/object", b"")
    os.symlink(store.path("folder"), store.path("link"))
    store.delete("link/object")
    assert store.names("folder") == []
    # The folder itself may lie elsewhere: that is where its owner wants it.
    os.symlink(store.url, tmp_path / "runs")
    runs = Store(str(tmp_path / "runs"))
    runs.write("object", b"")
    runs.delete("object")
    assert runs.names() == ["folder", "link"]


def test_what_is_put_never_replaces_anything(store: Store, outside: Path) -> None:
    store.write("object", b"old")
    os.symlink(outside / "object", store.path("link"))
    os.symlink(outside / "new", store.path("dangling"))
    for key in ("object", "link", "dangling"):
        with pytest.raises(FileExistsError):
            store.put(key, memoryview(b"new"))
    assert store.read("object") == b"old"
    assert os.listdir(outside) == ["object"]
    assert (outside / "object").read_bytes() == b"precious"


def test_nothing_is_written_through_a_link_that_leads_out(store: Store, outside: Path) -> None:
    store.write("source", b"bytes")
    os.symlink(outside, store.path("link"))
    for act in (
        lambda: store.write("link/object", b"new"),
        lambda: store.create("link/new", b"new"),
        lambda: store.put("link/new", memoryview(b"new")),
        lambda: store.upload(store.path("source"), "link/object"),
        lambda: store.copy("source", store, "link/object"),
        lambda: store.link_or_copy("source", store, "link/object"),
    ):
        with pytest.raises(ConfigError, match="a link on the way leads to"):
            act()
    assert os.listdir(outside) == ["object"]
    assert (outside / "object").read_bytes() == b"precious"


def test_a_link_in_the_place_of_an_object_is_replaced_itself(store: Store, outside: Path) -> None:
    store.write("other", b"")
    os.symlink(outside / "object", store.path("link"))
    store.write("link", b"new")
    assert store.read("link") == b"new"
    assert (outside / "object").read_bytes() == b"precious"


def test_a_probe_names_the_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for url in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match=r"cannot create .*file.*NotADirectoryError"):
            Store(str(url)).probe()


def test_a_half_written_object_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-0123").touch()
    assert Store(str(tmp_path)).names() == []


def test_a_disk_needs_no_s3_client(tmp_path: Path) -> None:
    code = """
import sys
from train_core.storage.store import Store
store = Store(sys.argv[1])
store.create("object", b"")
for action in (lambda: store.create("object", b"other"), lambda: store.read("none")):
    try:
        action()
    except (FileExistsError, FileNotFoundError):
        pass
print("botocore" in sys.modules)
"""
    said = subprocess.check_output([sys.executable, "-c", code, tmp_path], text=True)
    assert said == "False\n"
