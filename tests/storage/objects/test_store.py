"""The contract of Store: one suite for a disk, for a real S3 server and for the tests' double.

fsspec's memory filesystem is not among them: its conditional create looks first and writes then,
so that two threads can both succeed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from blake3 import blake3

from tests import commands
from train_core.errors import ConfigError
from train_core.storage.objects.store import Store

RACERS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from train_core.storage.objects.store import Store
store = Store(sys.argv[1])
def create(racer):
    try:
        store.create("race", racer.encode())
    except FileExistsError:
        return []
    return [racer]
with ThreadPoolExecutor(4) as threads:
    store.exists("race")
    print("ready", flush=True)
    sys.stdin.readline()
    print(*sum(threads.map(create, sys.argv[2:]), []))
"""


def test_an_object_is_read_piece_by_piece(store: Store) -> None:
    store.write("object", bytes(range(10)))
    assert list(store.chunks("object", 4)) == [b"\0\1\2\3", b"\4\5\6\7", b"\x08\x09"]
    store.write("empty", b"")
    assert list(store.chunks("empty")) == []
    with pytest.raises(FileNotFoundError):
        list(store.chunks("nothing"))


def test_what_is_written_is_read_back(store: Store) -> None:
    store.write("folder/object", b"bytes")
    assert store.read("folder/object") == b"bytes"
    assert store.size_bytes("folder/object") == 5
    assert store.exists("folder/object")


def test_writing_again_replaces_the_object(store: Store) -> None:
    store.write("object", b"long old bytes")
    store.write("object", b"new")
    assert store.read("object") == b"new"


@pytest.mark.parametrize("ask", [Store.read, Store.size_bytes])
def test_a_missing_object_is_named_by_its_error(store: Store, ask: object) -> None:
    assert callable(ask)
    with pytest.raises(FileNotFoundError, match=f"^{store.url}/none does not exist$"):
        ask(store, "none")


def test_a_missing_object_is_not_downloaded(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"^{store.url}/none does not exist$"):
        store.download("none", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_an_object_is_created_once(store: Store) -> None:
    store.create("folder/object", b"first")
    with pytest.raises(FileExistsError, match=f"^{store.url}/folder/object exists$"):
        store.create("folder/object", b"second")
    assert store.read("folder/object") == b"first"


@pytest.mark.promise("created-once")
def test_one_that_asks_again_for_its_own_object_has_it(store: Store) -> None:
    store.create("object", b"mine")
    store.create("object", b"mine")


def test_a_deleted_object_can_be_created_again(store: Store) -> None:
    store.create("object", b"first")
    store.delete("object")
    store.create("object", b"second")
    assert store.read("object") == b"second"


def test_of_sixteen_threads_that_create_one_object_one_wins(store: Store) -> None:
    contents = [bytes([racer]) * 2**20 for racer in range(16)]
    ended = threading.Event()

    def create(data: bytes) -> bool:
        try:
            store.create("race", data)
        except FileExistsError:
            return False
        return True

    def watch() -> set[bytes]:
        seen = set()
        while not ended.is_set():
            try:
                seen.add(store.read("race"))
            except FileNotFoundError:
                continue
        return seen

    with ThreadPoolExecutor(17) as threads:
        seen = threads.submit(watch)
        try:
            won = list(threads.map(create, contents))
            winner = store.read("race")
        finally:
            ended.set()
    assert won.count(True) == 1
    assert winner == contents[won.index(True)]
    assert seen.result() <= {winner}  # never half, never another


@pytest.mark.promise("created-once")
def test_of_sixteen_racers_in_four_processes_one_wins(store: Store) -> None:
    racers = [(store.url, *(f"{number}-{i}" for i in range(4))) for number in range(4)]
    winners = [said.split() for said in commands.at_once(RACERS, *racers)]
    assert sorted(map(len, winners)) == [0, 0, 0, 1]
    assert [store.read("race").decode()] in winners


def test_many_that_create_the_same_bytes_all_succeed(store: Store) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: store.create("object", b"same"), range(8)))
    assert store.read("object") == b"same"


def test_while_an_object_is_replaced_the_old_or_the_new_one_is_read(
    store: Store, tmp_path: Path
) -> None:
    contents = [bytes([number]) * 2**20 for number in range(4)]
    (tmp_path / "file").write_bytes(contents[2])
    store.write("object", contents[0])
    store.write("source", contents[3])
    ended = threading.Event()

    def watch() -> set[bytes]:
        seen = set()
        while not ended.is_set():
            seen.add(store.read("object"))
        return seen

    with ThreadPoolExecutor(1) as threads:
        seen = threads.submit(watch)
        try:
            for _ in range(5):
                store.write("object", contents[1])
                store.upload(tmp_path / "file", "object")
                store.copy("source", store, "object")
        finally:
            ended.set()
    assert seen.result() <= set(contents)


def test_an_object_too_large_for_one_request_is_not_created(store: Store) -> None:
    with pytest.raises(ValueError, match="67108864 bytes are too many to create"):
        store.create("object", bytes(64 * 2**20))
    assert store.names() == []


def test_a_large_file_comes_back_the_same(store: Store, tmp_path: Path) -> None:
    data = os.urandom((30 if store.is_local else 120) * 2**20)  # several parts on S3
    (tmp_path / "sent").write_bytes(data)
    store.upload(tmp_path / "sent", "folder/large")
    digest = store.download("folder/large", tmp_path / "received")
    assert digest == store.digest("folder/large", len(data)) == blake3(data).hexdigest()
    assert store.size_bytes("folder/large") == len(data)
    assert (tmp_path / "received").read_bytes() == data


def test_files_travel_at_the_same_time(store: Store, tmp_path: Path) -> None:
    def there_and_back(number: int) -> bool:
        sent, received = tmp_path / f"sent-{number}", tmp_path / f"received-{number}"
        sent.write_bytes(os.urandom(2**20))
        store.upload(sent, f"folder/{number}")
        store.download(f"folder/{number}", received)
        return sent.read_bytes() == received.read_bytes()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(there_and_back, range(8)))


def test_an_empty_file_comes_back_empty(store: Store, tmp_path: Path) -> None:
    (tmp_path / "sent").touch()
    store.upload(tmp_path / "sent", "empty")
    store.download("empty", tmp_path / "received")
    assert (tmp_path / "received").read_bytes() == b""


def test_names_are_those_directly_below_and_sorted(store: Store) -> None:
    for key in ("b", "a/x", "a/y/z", "ab"):
        store.write(key, b"")
    assert store.names() == ["a", "ab", "b"]
    assert store.names("a") == ["x", "y"]


def test_where_nothing_is_there_are_no_names(store: Store) -> None:
    store.write("object", b"")
    assert store.names("none") == []
    assert store.names("object") == []
    assert store.names("object/below") == []
    assert not store.exists("none")
    assert not store.exists("object/below")


def test_more_objects_than_one_answer_holds_are_listed(store: Store) -> None:
    wanted = [f"{number:04d}" for number in range(1001)]  # S3 lists 1,000 at a time
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: store.write(name, b""), wanted))
    assert store.names() == wanted


def test_what_another_process_wrote_and_deleted_is_seen_at_once(store: Store) -> None:
    def elsewhere(action: str) -> None:
        code = f"from train_core.storage.objects.store import Store; Store({store.url!r}).{action}"
        subprocess.run([sys.executable, "-c", code], check=True)

    store.write("folder/old", b"")
    assert store.names("folder") == ["old"]
    assert not store.exists("folder/new")
    elsewhere("write('folder/new', b'')")
    assert store.names("folder") == ["new", "old"]
    assert store.exists("folder/new")
    elsewhere("delete('folder/new')")
    assert store.names("folder") == ["old"]
    assert not store.exists("folder/new")


def test_deleting_takes_the_folder_and_not_its_neighbours(store: Store) -> None:
    for key in ("step-1/a", "step-1/b/c", "step-10/a", "step-1.json"):
        store.write(key, b"")
    store.delete("step-1")
    assert store.names() == ["step-1.json", "step-10"]
    assert store.names("step-10") == ["a"]


def test_deleting_what_is_gone_is_fine(store: Store) -> None:
    store.delete("none")
    store.write("object", b"")
    store.delete("object/below")
    store.delete("object")
    store.delete("object")
    assert store.names() == []


def test_of_two_that_delete_the_same_folder_neither_fails(store: Store) -> None:
    for first, second in product("abcdefgh", repeat=2):
        store.write(f"folder/{first}/{second}", b"")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: store.delete("folder"), range(4)))
    assert not store.exists("folder")


@pytest.mark.parametrize("key", ["*", "a*", "a?", "[ab]", "**"])
def test_a_wildcard_in_a_key_is_a_letter_like_others(store: Store, key: str) -> None:
    for other in ("a", "ab", "ac/x"):
        store.write(other, b"")
    store.delete(key)
    assert store.names() == ["a", "ab", "ac"]
    store.write(key, b"bytes")
    assert store.exists(key)
    assert key in store.names()
    store.delete(key)
    assert store.names() == ["a", "ab", "ac"]


@pytest.mark.parametrize("copy", ["copy", "link_or_copy"])
def test_an_object_is_copied_within_its_storage(store: Store, copy: str) -> None:
    source, target = store.child("source"), store.child("target")
    source.write("a/object", b"bytes")
    target.write("b/copy", b"old bytes")
    for key in ("b/copy", "b/other"):
        getattr(source, copy)("a/object", target, key)
        getattr(source, copy)("a/object", target, key)
    source.write("a/object", b"changed")
    assert target.read("b/copy") == target.read("b/other") == b"bytes"
    source.delete("a")
    assert target.names("b") == ["copy", "other"]


@pytest.mark.parametrize("change", ["write", "upload", "copy", "link_or_copy"])
def test_whatever_replaces_an_object_leaves_its_copies_alone(
    store: Store, change: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"new")
    store.write("object", b"old")
    store.write("new", b"new")
    store.link_or_copy("object", store, "copy")
    actions = {
        "write": lambda: store.write("object", b"new"),
        "upload": lambda: store.upload(tmp_path / "file", "object"),
        "copy": lambda: store.copy("new", store, "object"),
        "link_or_copy": lambda: store.link_or_copy("new", store, "object"),
    }
    actions[change]()
    assert store.read("object") == b"new"
    assert store.read("copy") == b"old"


@pytest.mark.parametrize("copy", ["copy", "link_or_copy"])
def test_what_cannot_be_copied_is_named(store: Store, copy: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"^{store.url}/none does not exist$"):
        getattr(store, copy)("none", store, "copy")
    assert store.names() == []
    with pytest.raises(ValueError, match="not on the same storage"):
        getattr(store, copy)("none", Store("memory://elsewhere"), "copy")


@pytest.mark.parametrize("key", ["../out", "a/../../out", "/etc/passwd", "..", "a/.."])
def test_a_key_cannot_leave_the_folder(store: Store, key: str) -> None:
    for action in (store.read, store.exists, store.delete, store.names, store.uri, store.child):
        with pytest.raises(ValueError, match="leaves the folder"):
            action(key)
    for put in (store.write, store.create):
        with pytest.raises(ValueError, match="leaves the folder"):
            put(key, b"")
    for copy in (store.copy, store.link_or_copy):
        for source, target in ((key, "inside"), ("inside", key)):
            with pytest.raises(ValueError, match="leaves the folder"):
                copy(source, store, target)
    with pytest.raises(ValueError, match="leaves the folder"):
        store.upload("file", key)
    with pytest.raises(ValueError, match="leaves the folder"):
        store.download(key, "file")


def test_a_store_travels_to_other_processes(store: Store) -> None:
    store.write("object", b"bytes")
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    assert again.read("object") == b"bytes"


def test_a_child_is_the_folder_below(store: Store) -> None:
    store.child("a").write("b", b"bytes")
    assert store.read("a/b") == b"bytes"
    assert store.child("a").uri("b") == store.uri("a/b")


def test_a_probe_leaves_nothing(store: Store) -> None:
    store.probe()
    assert store.names() == []


def test_an_unknown_kind_of_storage_is_named() -> None:
    with pytest.raises(ConfigError, match=r"storage 'nosuch://x' cannot be used: .*nosuch"):
        Store("nosuch://x")


def test_wildcards_in_an_address_are_refused() -> None:
    with pytest.raises(ConfigError, match="wildcards"):
        Store("memory://runs-*")
