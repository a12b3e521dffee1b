"""Files that a manifest vouches for: stored, read, copied and checked by size and digest."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from train_core.errors import CheckpointError, StorageError
from train_core.storage.objects.digest_algorithm import new_digest
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import FileEntry


def write_file(store: Store, key: str, data: memoryview) -> FileEntry:
    """Store the bytes as a new object and say what it is."""
    return FileEntry(name=key.rpartition("/")[2], size_bytes=len(data), digest=store.put(key, data))


def check_size(store: Store, key: str, entry: FileEntry) -> None:
    """Raise CheckpointError if the object is missing, no file, or not as large as was committed."""
    if fault := _fault_of_size(store, key, entry):
        raise CheckpointError(f"{store.uri(key)} {fault}")


def are_there(store: Store, folder: str, entries: Iterable[FileEntry]) -> bool:
    """Whether all files that a result's manifest lists are there, and as large as committed.

    They need not be: a process that is fenced while it writes may commit what was deleted.
    """
    try:
        return not any(_fault_of_size(store, f"{folder}/{entry.name}", entry) for entry in entries)
    except CheckpointError:
        return False


def read_file(store: Store, key: str, entry: FileEntry) -> memoryview:
    """The object's bytes, which may be changed.

    Raises CheckpointError, naming the object, if they are not what was committed, and StorageError
    if they are, but this machine's memory is too small for them: it may be larger elsewhere.
    """
    # Imported late: a server of a model reads no such file, and need not have it.
    import psutil

    if entry.size_bytes > psutil.virtual_memory().total:
        raise _too_large(store, key, entry)

    def read() -> memoryview:
        try:
            with _damage_named(store, key):
                data, digest = store.load(key, entry.size_bytes)
        except StorageError as error:
            if isinstance(error.__cause__, MemoryError):
                raise _too_large(store, key, entry) from error
            raise
        _check_digest(store, key, entry, digest)
        return data

    return store.verified(key, read)


def download_file(store: Store, key: str, entry: FileEntry, local: Path) -> None:
    """Copy the object into a local file, in bounded memory.

    Raises CheckpointError, naming the object, if it is not what was committed.
    """

    def read() -> None:
        check_size(store, key, entry)
        with _damage_named(store, key):
            digest = store.download(key, local)
        _check_digest(store, key, entry, digest)

    store.verified(key, read)


def copy_file(store: Store, key: str, target: Store, target_key: str, entry: FileEntry) -> None:
    """Copy the object within its storage, on the server's side, and verify the copy.

    Raises CheckpointError, and leaves no copy, if it is not what was committed.
    """

    def copy() -> None:
        check_size(store, key, entry)
        store.copy(key, target, target_key)
        # The copy is what is used: whatever happens to the object meanwhile.
        try:
            _check_bytes(target, target_key, entry)
        except CheckpointError as error:
            target.delete(target_key)
            raise CheckpointError(
                f"{store.uri(key)} is not what was committed: the copy {error}"
            ) from error

    store.verified(key, copy)


def fault_of(store: Store, key: str, entry: FileEntry) -> str:
    """What is wrong with the object, read in bounded memory; nothing if all is well."""
    try:
        store.verified(key, lambda: _check_bytes(store, key, entry))
    except CheckpointError as error:
        return str(error)
    return ""


def _check_bytes(store: Store, key: str, entry: FileEntry) -> None:
    """Read the object in bounded memory. Raises CheckpointError if it is not what was committed."""
    try:
        size, digest = store.size_bytes(key), new_digest()
        if size == entry.size_bytes:
            for chunk in store.chunks(key):
                digest.update(chunk)
    except FileNotFoundError as error:
        raise CheckpointError(f"{key} is missing") from error
    except CheckpointError as error:
        raise CheckpointError(f"{key}: {error}") from error
    if size != entry.size_bytes:
        raise CheckpointError(f"{key} {_other_size(size, entry)}")
    if digest.hexdigest() != entry.digest:
        raise CheckpointError(f"{key}: its digest is another")


@contextmanager
def _damage_named(store: Store, key: str) -> Iterator[None]:
    """Raise CheckpointError for an object that is gone, and for one that the disk cannot read."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{store.uri(key)} is missing") from error
    except StorageError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO:
            raise CheckpointError(f"the disk cannot read {store.uri(key)}: {error}") from error
        raise


def _check_digest(store: Store, key: str, entry: FileEntry, digest: str) -> None:
    if digest != entry.digest:
        fault = _fault_of_size(store, key, entry) or "has a digest that is not the committed one"
        raise CheckpointError(f"{store.uri(key)} {fault}")


def _too_large(store: Store, key: str, entry: FileEntry) -> StorageError:
    """The error that the object is too large; raises CheckpointError if that was a lie."""
    check_size(store, key, entry)
    return StorageError(
        f"{store.uri(key)}: its {entry.size_bytes} bytes do not fit into this machine's memory"
    )


def _fault_of_size(store: Store, key: str, entry: FileEntry) -> str:
    try:
        size = store.size_bytes(key)
    except FileNotFoundError:
        return "is missing"
    return "" if size == entry.size_bytes else _other_size(size, entry)


def _other_size(size: int, entry: FileEntry) -> str:
    return f"has {size} bytes, {entry.size_bytes} were committed"
