"""Files that a manifest vouches for: stored, read and checked by size and SHA-256."""

from __future__ import annotations

import hashlib

import psutil

from train_core.errors import CheckpointError, StorageError
from train_core.storage.manifest import FileEntry
from train_core.storage.store import Store


def write_file(store: Store, key: str, data: memoryview) -> FileEntry:
    """Store the bytes as a new object and say what it is."""
    return FileEntry(name=key.rpartition("/")[2], size_bytes=len(data), digest=store.put(key, data))


def check_size(store: Store, key: str, entry: FileEntry) -> None:
    """Look at the object before it is read into memory.

    Raises CheckpointError if it is missing, is reached by a link or is not as large as was
    committed, and StorageError if it is larger than this machine's memory: it may fit elsewhere.
    """
    if fault := _fault_of_size(store, key, entry):
        raise CheckpointError(f"{store.uri(key)} {fault}")
    if entry.size_bytes > psutil.virtual_memory().total:
        raise StorageError(
            f"{store.uri(key)}: its {entry.size_bytes} bytes do not fit into this machine's memory"
        )


def read_file(store: Store, key: str, entry: FileEntry, into: memoryview) -> None:
    """Fill `into`, `entry.size_bytes` long, with the object's bytes.

    Raises CheckpointError, naming the object, if they are not what was committed.
    """
    assert len(into) == entry.size_bytes
    try:
        digest = store.fill(key, into)
    except FileNotFoundError as error:
        raise CheckpointError(f"{store.uri(key)} is missing") from error
    if digest != entry.digest:
        raise CheckpointError(f"{store.uri(key)}: its SHA-256 is not the committed one")


def read_whole(store: Store, key: str, entry: FileEntry) -> bytes:
    """The object's bytes, verified. Raises CheckpointError, naming it, if it is another."""
    check_size(store, key, entry)
    data = bytearray(entry.size_bytes)
    read_file(store, key, entry, memoryview(data))
    return bytes(data)


def fault_of(store: Store, key: str, entry: FileEntry) -> str:
    """What is wrong with the object, read in bounded memory; nothing if all is well."""
    if found := _fault_of_size(store, key, entry):
        return f"{key} {found}"
    sha = hashlib.sha256()
    try:
        for chunk in store.chunks(key):
            sha.update(chunk)
    except FileNotFoundError:
        return f"{key} is missing"
    return "" if sha.hexdigest() == entry.digest else f"{key}: its SHA-256 is another"


def _fault_of_size(store: Store, key: str, entry: FileEntry) -> str:
    if link := store.link_on_the_way(key):
        return f"is reached by the link {link}, and evertrain makes none"
    try:
        size = store.size_bytes(key)
    except FileNotFoundError:
        return "is missing"
    if size != entry.size_bytes:
        return f"has {size} bytes, {entry.size_bytes} were committed"
    return ""
