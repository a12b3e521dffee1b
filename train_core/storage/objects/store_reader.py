"""A folder on any fsspec storage, to be read: addresses, retries, objects and listings.

Small objects are read whole, by fsspec. `load` is for a checkpoint's large files: on S3 obstore
fetches them in parallel parts, on a disk they are mapped (`disk_files.map_file`). Nothing goes
through `open()`, whose single stream is an order of magnitude slower on an object store. Errors
that pass by themselves are tried again (`retry_policy.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import fsspec
from fsspec.core import has_magic
from fsspec.utils import get_protocol, stringify_path

from train_core.errors import ConfigError
from train_core.storage.objects.backends import disk, s3
from train_core.storage.objects.backends.disk_files import TEMPORARY
from train_core.storage.objects.backends.fsspec_backend import Backend
from train_core.storage.objects.retry_policy import (
    DEFAULT,
    RetryPolicy,
    UnfinishedError,
    retried,
    storage_errors,
)

_BACKENDS: dict[str, type[Backend]] = {
    **dict.fromkeys(disk.PROTOCOLS, disk.DiskBackend),
    **dict.fromkeys(s3.PROTOCOLS, s3.S3Backend),
}
"""By protocol; every other one is spoken to through fsspec alone."""
_T = TypeVar("_T")


class StoreReader:
    """A folder at `url`, to be read: a local path, `s3://bucket/prefix`, or any other fsspec URL.

    Credentials and endpoints come from the environment, as the storage's own client reads them.
    Keys are relative to the folder, separated by `/`. Missing objects raise FileNotFoundError,
    everything else that storage answers raises StorageError: at once if asking again is of no use,
    else when the retry policy's budget is spent. On a disk regular files are read only, and no link
    below the folder is followed: another thing in a file's place raises CheckpointError, as only
    somebody else can have put it there.
    """

    follows_links: ClassVar[bool] = False
    """Whether what is read on a disk may be behind links, and no regular file."""

    def __init__(self, url: str, retry_policy: RetryPolicy = DEFAULT) -> None:
        self.protocol: str = get_protocol(stringify_path(url))
        self.retry_policy = retry_policy
        kind = _BACKENDS.get(self.protocol, Backend)
        if not kind.is_local and has_magic(url):
            raise ConfigError(f"storage {url!r} cannot be used: '*', '?' and '[' are wildcards")
        try:
            self._backend = kind(self.protocol, retry_policy)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"storage {url!r} cannot be used: {error}") from error
        self._root: str = self.fs._strip_protocol(url)  # noqa: SLF001 (fsspec's only way)
        self._guard = None if self.follows_links else self._root
        self.url = self._root if self.is_local else url.rstrip("/")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.url, self.retry_policy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """The fsspec filesystem behind the folder, for a library that wants one."""
        return self._backend.fs

    @property
    def is_local(self) -> bool:
        """Whether it is a disk of this machine, or looks like one."""
        return self._backend.is_local

    def path(self, key: str) -> str:
        """The object's path as the filesystem spells it. Keys may not leave the folder."""
        if key.startswith("/") or ".." in key.split("/"):
            raise ValueError(f"key {key!r} leaves the folder {self.url}")
        return posixpath.join(self._root, key) if key else self._root

    def uri(self, key: str) -> str:
        """The object's address for people and for other programs."""
        self.path(key)
        return posixpath.join(self.url, key) if key else self.url

    def child(self, key: str) -> Self:
        """The folder below this one."""
        return self._at(self.uri(key), self.retry_policy)

    def with_retries(self, retry_policy: RetryPolicy) -> Self:
        """The same folder, waited for so long."""
        return self._at(self.url, retry_policy)

    def read(self, key: str, max_bytes: int | None = None) -> bytes:
        """The whole object. Raises CheckpointError if it has more than `max_bytes`."""
        path = self.path(key)

        def once(left_s: float) -> bytes:
            return self._backend.read(left_s, path, self._guard, max_bytes)

        return self._run("read", key, once)

    def chunks(self, key: str, size_bytes: int = 16 * 2**20) -> Iterator[bytes]:
        """The object piece by piece, in bounded memory."""
        end = self.size_bytes(key)
        for start in range(0, end, size_bytes):
            yield self.piece(key, start, min(start + size_bytes, end))

    def piece(self, key: str, start: int, end: int) -> bytes:
        """The object's bytes from `start` to `end`."""
        path = self.path(key)
        if start >= end:
            return b""  # some servers refuse to be asked for nothing

        def once(left_s: float) -> bytes:
            return self._backend.piece(left_s, path, self._guard, start, end)

        return self._run("read", key, once, size_bytes=end - start)

    def size_bytes(self, key: str) -> int:
        """The object's size."""
        path = self.path(key)
        return self._run("stat", key, lambda left_s: self._backend.size(left_s, path, self._guard))

    def load(self, key: str, size_bytes: int) -> tuple[memoryview, str]:
        """The object's bytes, which may be changed, and their digest; from parallel parts.

        The digest is empty if the object is not of that size.
        """
        path = self.path(key)

        def once(left_s: float) -> tuple[memoryview, str]:
            return self._backend.load(left_s, path, self._guard, size_bytes)

        return self._run("read", key, once, size_bytes=size_bytes)

    def download(self, key: str, local: str | Path) -> str:
        """Copy the object into a local file, from parallel parts and in bounded memory; its digest.

        The digest is empty if the object has changed meanwhile.
        """
        path, size_bytes = self.path(key), StoreReader.size_bytes(self, key)

        def once(left_s: float) -> str:
            with open(local, "wb") as file:
                return self._backend.pass_on(left_s, path, self._guard, size_bytes, file.write)

        return self._run("download", key, once, size_bytes=size_bytes)

    def digest(self, key: str, size_bytes: int) -> str:
        """The digest of the object's bytes, which are read as `download` does.

        It is empty if the object is not of that size.
        """
        path = self.path(key)

        def once(left_s: float) -> str:
            return self._backend.pass_on(left_s, path, self._guard, size_bytes, lambda _: None)

        return self._run("read", key, once, size_bytes=size_bytes)

    def exists(self, key: str) -> bool:
        """Whether the object is there."""
        path = self.path(key)
        return self._run("stat", key, lambda left_s: self._backend.exists(left_s, path))

    def names(self, key: str = "") -> list[str]:
        """The names directly below `key`, sorted; empty if nothing is there."""
        folder = self.path(key).rstrip("/")

        def once(left_s: float) -> set[str]:
            try:
                return self._backend.names(left_s, folder)
            except (FileNotFoundError, NotADirectoryError):
                return set()

        found = self._run("list", key, once)
        return sorted(name for name in found if not name.startswith(TEMPORARY))

    def in_folders(self, key: str) -> dict[str, set[str]]:
        """The names in each folder directly below `key`, by the folder's name; one listing on S3.

        Raises nothing if nothing is there. A storage without folders has those only that are not
        empty.
        """
        folder = self.path(key).rstrip("/")

        def once(left_s: float) -> dict[str, set[str]]:
            try:
                return self._backend.in_folders(left_s, folder)
            except (FileNotFoundError, NotADirectoryError):
                return {}

        return self._run("list", key, once)

    def tree(self, key: str = "", max_depth: int = 0) -> dict[str, dict[str, Any]]:
        """What the filesystem tells of the object, or of each in the folder and below it, by key.

        `max_depth` is how many levels below it are looked at; 0: all. Raises FileNotFoundError if
        nothing is there.
        """
        path = self.path(key).rstrip("/")

        def once(left_s: float) -> dict[str, dict[str, Any]]:
            info = self._ask(left_s, "info", path or "/")
            if info["type"] != "directory":
                return {path: info}
            found = self._ask(left_s, "find", path or "/", maxdepth=max_depth or None, detail=True)
            return {name: one for name, one in found.items() if one["type"] == "file"}

        found = self._run("list", key, once)
        root = self._root.rstrip("/")
        return {name.removeprefix(root).lstrip("/"): one for name, one in found.items()}

    def sizes(self, key: str = "") -> dict[str, int]:
        """The sizes of the objects below `key`, also in its folders, by their names from there."""
        folder = self.path(key).rstrip("/") or "/"

        def once(left_s: float) -> dict[str, int | None]:
            try:
                return {
                    one["name"].rstrip("/").removeprefix(folder).lstrip("/"): one["size"]
                    for one in self._backend.below(left_s, folder)
                }
            except (FileNotFoundError, NotADirectoryError) as error:
                if not self._backend.exists(left_s, folder):
                    return {}
                # A disk is asked for each file, and one was renamed or deleted in that moment.
                raise UnfinishedError("what is in it changes") from error

        found = self._run("list", key, once)
        return {
            # A server of plain HTTP may list no sizes.
            name: self.size_bytes(f"{key}/{name}".lstrip("/")) if size is None else int(size)
            for name, size in sorted(found.items())
            # As in `names`: what marks the folder is no object in it.
            if name and not posixpath.basename(name).startswith(TEMPORARY)
        }

    def _at(self, url: str, retry_policy: RetryPolicy) -> Self:
        """A store of the same kind at another address."""
        return type(self)(url, retry_policy)

    def _ask(self, left_s: float, method: str, *args: object, **options: object) -> Any:
        """Call the filesystem, which has so many seconds left."""
        return self._backend.ask(left_s, method, *args, **options)

    def _run(
        self,
        action: str,
        key: str,
        operation: Callable[[float], _T],
        *,
        writing: bool = False,
        size_bytes: int = 0,
    ) -> _T:
        """What the operation, given the seconds left, returns; tried again, and with our errors."""
        uri = self.uri(key)
        with storage_errors(action, uri, writing=writing):
            title = f"cannot {action} {uri}"
            return retried(operation, title, self.retry_policy, size_bytes=size_bytes)
