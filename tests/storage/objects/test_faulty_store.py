"""The tests' double fails where it was told to; test_store.py says that it is a Store otherwise."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.storage.doubles.faulty_store import KINDS, LOOK, LOOKS, FaultyStore
from train_core.errors import StorageError

ONE_WRITE = """
import pickle, sys
pickle.loads(bytes.fromhex(sys.argv[1])).child("below").write("elsewhere", b"")
"""


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(str(tmp_path / "storage"), tmp_path / "notes")


def elsewhere(store: FaultyStore) -> int:
    """The exit status of a process that writes one object with the same store."""
    command = [sys.executable, "-c", ONE_WRITE, pickle.dumps(store).hex()]
    return subprocess.run(command, check=False, timeout=60).returncode


def operations(store: FaultyStore, file: Path) -> dict[str, Callable[[], object]]:
    """One operation of each kind."""
    return {
        "write": lambda: store.write("object", b""),
        "create": lambda: store.create("created", b""),
        "put": lambda: store.put("put", memoryview(b"")),
        "upload": lambda: store.upload(file, "uploaded"),
        "copy": lambda: store.copy("object", store, "copied"),
        "link_or_copy": lambda: store.link_or_copy("object", store, "linked"),
        "delete": lambda: store.delete("object"),
    }


@pytest.mark.parametrize("op", range(1, len(KINDS) + 1))
def test_the_operation_that_was_named_fails_and_no_other(
    store: FaultyStore, tmp_path: Path, op: int
) -> None:
    (tmp_path / "file").touch()
    store.write("object", b"")
    store.fail_at(op + 1)
    failed = []
    for kind, act in operations(store, tmp_path / "file").items():
        try:
            act()
        except StorageError:
            failed.append(kind)
    assert failed == [KINDS[op - 1]]
    assert store.operations == ["write", *KINDS]


@pytest.mark.parametrize("op", range(1, len(LOOKS) + 1))
def test_looks_are_counted_and_fail_by_themselves(
    store: FaultyStore, tmp_path: Path, op: int
) -> None:
    store.write("object", b"bytes")
    store.fail_at(op, kind=LOOK)
    looks: dict[str, Callable[[], object]] = {
        "read": lambda: store.read("object"),
        "load": lambda: store.load("object", 5),
        "download": lambda: store.download("object", tmp_path / "copy"),
        "digest": lambda: store.digest("object", 5),
        "size_bytes": lambda: store.size_bytes("object"),
        "exists": lambda: store.exists("object"),
        "names": store.names,
        "in_folders": lambda: store.in_folders(""),
        "unfinished_uploads": store.unfinished_uploads,
    }
    failed = []
    for kind, act in looks.items():
        try:
            act()
        except StorageError:
            failed.append(kind)
    assert failed == [LOOKS[op - 1]]
    assert store.everything == ["write", *LOOKS]
    assert store.operations == ["write"]


def test_an_operation_is_counted_among_its_kind(store: FaultyStore) -> None:
    store.fail_at(2, kind="create")
    store.create("a", b"")
    store.write("b", b"")
    store.write("c", b"")
    with pytest.raises(StorageError, match=f"^cannot create {store.url}/d: the test"):
        store.create("d", b"")
    store.create("e", b"")
    assert store.names() == ["a", "b", "c", "e"]


def test_what_failed_may_have_been_done(store: FaultyStore) -> None:
    store.fail_at(1, done=True)
    with pytest.raises(StorageError):
        store.write("object", b"bytes")
    assert store.read("object") == b"bytes"


def test_it_fails_until_it_works_again(store: FaultyStore) -> None:
    store.fail_at(2, times=None)
    store.write("a", b"")
    for key in "bc":
        with pytest.raises(StorageError):
            store.write(key, b"")
    store.work_again()
    store.write("d", b"")
    assert store.names() == ["a", "d"]


def test_children_copies_and_other_processes_share_the_count(store: FaultyStore) -> None:
    store.write("a", b"")
    store.child("below").write("b", b"")
    pickle.loads(pickle.dumps(store)).write("c", b"")
    assert elsewhere(store) == 0
    store.child("below").fail_at(5)
    with pytest.raises(StorageError):
        store.write("d", b"")
    assert store.operations == ["write"] * 5


def test_the_process_is_killed_at_the_operation(store: FaultyStore) -> None:
    store.fail_at(1, how="kill")
    assert elsewhere(store) == -signal.SIGKILL
    assert store.names() == []
    store.fail_at(2, how="kill", done=True)
    assert elsewhere(store) == -signal.SIGKILL
    assert store.names("below") == ["elsewhere"]
    assert elsewhere(store) == 0


def test_each_of_many_at_once_has_its_own_number(store: FaultyStore) -> None:
    store.fail_at(20)

    def write(number: int) -> bool:
        try:
            store.write(f"{number}", b"")
        except StorageError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(write, range(40)))
    assert done.count(False) == 1
    assert len(os.listdir(store.url)) == 39
