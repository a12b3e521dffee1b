"""A file of a workload's data, and what a storage says of a file without reading it.

A file that is missing, or is not the one that was recorded, is a DataError. The check is cheap: a
listing gives sizes and versions, and a file is read for its digest only if its version is another
one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import IO, Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from train_core.errors import DataError
from train_core.policy.logins import hide_logins
from train_core.storage.addresses import absolute
from train_core.storage.objects.digest_algorithm import new_digest
from train_core.storage.objects.store import DataStore, Store

# Where fsspec's filesystems give a file's version, the best first: entries that change with the
# content, and times, which two contents may share.
_OF_CONTENT = ("ETag", "etag", "md5Hash", "generation", "content_md5")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")
_MEND = "bring it back as it was, or start a run under another name"


class FileState(NamedTuple):
    """What a storage says of a file without reading it."""

    size_bytes: int
    version: str
    """Another version may mean another content; empty: the storage has no versions."""
    is_of_content: bool
    """Whether another content always has another version."""


class DataFile(BaseModel):
    """A file of a workload's data, as the run recorded it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """Its address; on a disk its absolute path."""
    size_bytes: int
    digest: str
    """BLAKE3 of its bytes."""
    version: str
    """Its modification time on a disk, its ETag elsewhere: another one may mean another content."""

    def read(self) -> bytes:
        """All its bytes. Raises DataError if they are not what was recorded."""
        store, key = store_of(self.url)

        def read() -> bytes:
            try:
                data, digest = store.load(key, self.size_bytes)
            except FileNotFoundError:
                raise self.missing() from None
            if digest != self.digest:
                raise self.changed(f"its digest is {digest or 'that of another size'}")
            return bytes(data)

        return store.verified(key, read, DataError)

    def open(self) -> IO[bytes]:
        """The file opened for reading, for pyarrow and other libraries that read parts of files.

        Raises DataError if the file is not what was recorded. The bytes read are not verified.
        """
        store, key = store_of(self.url)
        self.check(file_states(store, key).get(key))
        opened: IO[bytes] = store.fs.open(store.path(key), "rb")
        return opened

    def check(self, found: FileState | None) -> None:
        """Raise DataError if the file, as it was found, is not what was recorded.

        The file is read only if its version is another one, or unknown.
        """
        if found is None:
            raise self.missing()
        size_bytes, version, _ = found
        if size_bytes != self.size_bytes:
            raise self.changed(f"it has {size_bytes} bytes")
        if version and version == self.version:
            return

        def read() -> None:
            digest, _ = digest_of_file(self.url, size_bytes, version)
            if digest != self.digest:
                raise self.changed(f"its digest is {digest}")

        store, key = store_of(self.url)
        store.verified(key, read, DataError)

    def missing(self) -> DataError:
        """The error that the file is not there."""
        return DataError(f"{hide_logins(self.url)} is missing, {self._recorded()}: {_MEND}")

    def changed(self, there: str) -> DataError:
        """The error that another file is there."""
        return DataError(
            f"{hide_logins(self.url)} is not the file that was recorded: {there}, "
            f"{self._recorded()}: {_MEND}"
        )

    def _recorded(self) -> str:
        return f"the run recorded {self.size_bytes} bytes with digest {self.digest}"


def is_data(name: str) -> bool:
    """Whether a file below a source's folder is data: no part of its name begins with . or _.

    Programs that write data name their marks and temporary files so: `_SUCCESS`, `.tmp-1`.
    """
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def state_of(url: str) -> str:
    """A digest of the state of the file at `url`, or of all data below that folder.

    It is made of names, sizes and versions; no file is read. Empty if the storage has no versions.
    """
    found = {name: one for name, one in file_states(DataStore(url), "").items() if is_data(name)}
    if not all(version for _, version, _ in found.values()):
        return ""
    digest = new_digest()
    for name, (size_bytes, version, _) in sorted(found.items()):
        digest.update(f"{size_bytes} {version} {name}\n".encode())
    return digest.hexdigest()


def store_of(url: str) -> tuple[DataStore, str]:
    """The folder of a file, and the file's key in it."""
    folder, _, key = url.rpartition("/")
    return DataStore(folder or "/"), key


def bytes_of(file: DataFile | str | os.PathLike[str]) -> tuple[str, bytes]:
    """The address and the content of a recorded file, or of the one at a path or URL."""
    if isinstance(file, DataFile):
        return file.url, file.read()
    url = absolute(os.fspath(file))
    store, key = store_of(url)
    try:
        return url, store.read(key)
    except FileNotFoundError:
        raise DataError(f"{hide_logins(url)} is missing") from None


def file_states(store: Store, key: str, max_depth: int = 0) -> dict[str, FileState]:
    """The state of the file at `key`, or of each file below it, by key; empty if there is none.

    `max_depth` is the number of levels to list; 0: all.
    """
    found = {}
    with suppress(FileNotFoundError):
        for name, info in store.tree(key, max_depth).items():
            version = _version(store, name, info)
            if version is not None:
                is_of_content = any(info.get(entry) for entry in _OF_CONTENT)
                found[name] = FileState(int(info["size"]), version, is_of_content)
    return found


def _version(store: Store, key: str, info: Mapping[str, Any]) -> str | None:
    """The file's version; empty: the storage has none; None: the file is gone."""
    if store.is_local:
        try:
            # fsspec gives the time as a float, which has no nanoseconds.
            return str(os.stat(store.path(key)).st_mtime_ns)
        except FileNotFoundError:
            return None
    version = next((info[name] for name in (*_OF_CONTENT, *_TIMES) if info.get(name)), "")
    return str(version).strip('"')


def digest_of_file(url: str, size_bytes: int, version: str) -> tuple[str, int]:
    """The digest and the size of the file as it is now; read once for each version."""
    return (_known_digest if version else _known_digest.__wrapped__)(url, size_bytes, version)


@lru_cache(maxsize=2**16)
def _known_digest(url: str, size_bytes: int, version: str) -> tuple[str, int]:  # noqa: ARG001 (keys)
    store, key = store_of(url)
    digest, there = new_digest(), 0
    for chunk in store.chunks(key):
        digest.update(chunk)
        there += len(chunk)
    return digest.hexdigest(), there
