"""Folders on any fsspec storage: their addresses, and operations with retries.

Errors that pass by themselves are tried again (`retry_policy.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import fsspec
from fsspec.core import has_magic
from fsspec.utils import get_protocol, stringify_path

from train_core.errors import ConfigError
from train_core.storage.objects.backends import disk, s3
from train_core.storage.objects.backends.fsspec_backend import Backend
from train_core.storage.objects.retry_policy import DEFAULT, RetryPolicy, retried, storage_errors

_BACKENDS: dict[str, type[Backend]] = {
    **dict.fromkeys(disk.PROTOCOLS, disk.DiskBackend),
    **dict.fromkeys(s3.PROTOCOLS, s3.S3Backend),
}
"""By protocol; every other one is spoken to through fsspec alone."""
_T = TypeVar("_T")


class StoreFolder:
    """The folder at `url`: a local path, `s3://bucket/prefix`, or any other fsspec URL.

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
