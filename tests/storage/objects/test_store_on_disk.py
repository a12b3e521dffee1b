"""What only a disk has: links, half-written files, files in the way."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

from train_core.errors import ConfigError, StorageError
from train_core.storage.objects.backends.disk_files import BLOCK_BYTES
from train_core.storage.objects.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "storage"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the store's, with a file that nobody may touch."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "object").write_bytes(b"precious")
    return tmp_path / "outside"


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
    with pytest.raises(ValueError, match=r"leaves the folder .*: a link in it leads to"):
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
        with pytest.raises(ConfigError, match="a link in it leads to"):
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
from train_core.storage.objects.store import Store
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


def in_memory(data: bytes, start: int) -> memoryview:
    """The bytes in memory of the system's own, so many bytes after the beginning of a page."""
    memory = memoryview(mmap.mmap(-1, start + len(data) + 1))
    memory[start : start + len(data)] = data
    return memory[start : start + len(data)]


def share_in_cache(path: Path) -> float:
    """How much of a file the system's cache has."""
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages):
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) / len(pages)


@pytest.mark.parametrize("start", [0, 1, 512, BLOCK_BYTES])
@pytest.mark.parametrize(
    "size",
    [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 300 * BLOCK_BYTES, 2**20 + 513],
    ids="{}".format,
)
def test_what_is_put_is_whole_wherever_it_begins_and_ends(
    store: Store, start: int, size: int
) -> None:
    data = os.urandom(size)
    assert store.put("folder/object", in_memory(data, start)) == blake3(data).hexdigest()
    assert Path(store.path("folder/object")).read_bytes() == data


def test_what_is_put_on_a_disk_in_memory_is_whole(other_disk: Path) -> None:
    data = os.urandom(2**20 + 513)
    store = Store(str(other_disk))
    assert store.put("object", in_memory(data, 0)) == blake3(data).hexdigest()
    assert (other_disk / "object").read_bytes() == data


@pytest.mark.parametrize("start", [0, 1])
def test_nothing_is_left_of_an_object_that_does_not_fit(store: Store, start: int) -> None:
    data = in_memory(os.urandom(2**20), start)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, limits[1]))
    try:
        with pytest.raises(StorageError, match="too large"):
            store.put("folder/object", data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(store.path("folder")) == []


def test_a_large_object_is_written_past_the_cache(store: Store, tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        pytest.skip(f"the filesystem of {tmp_path} cannot")
    data = os.urandom(2**23 + 1)
    store.put("whole", in_memory(data, 0))
    (tmp_path / "by-the-cache").write_bytes(data)
    assert share_in_cache(tmp_path / "by-the-cache") > 0.95
    assert share_in_cache(Path(store.path("whole"))) < 0.05
