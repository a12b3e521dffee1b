"""A folder on any fsspec storage, with the few operations that evertrain is built from.

Small objects are read and written whole; bulk data goes through parallel parts (`pipe_file`,
`cat_file`, `put_file`, `get_file`), never through `open()`, whose single stream is an order of
magnitude slower on an object store. `create` writes an object that must not exist yet, in one
step that has one winner: it is what every commit and every lease stands on. Errors that pass by
themselves are waited out (`patience.py`).
"""

from __future__ import annotations

import glob
import os
import posixpath
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import fsspec
from fsspec.core import has_magic
from fsspec.utils import get_protocol, stringify_path

from train_core.errors import ConfigError, StorageError
from train_core.storage.objects import local_disk, uploads
from train_core.storage.objects import transfer as bulk
from train_core.storage.objects.filesystems import LOCAL, S3, filesystem
from train_core.storage.objects.retries import (
    RetryPolicy,
    UnfinishedError,
    may_pass,
    retried,
    storage_errors,
)

_DEFAULT_PATIENCE = RetryPolicy()
# A wrong address is to be told in seconds, before anything is computed.
_PROBE_BUDGET_S = 10.0
# A condition holds for one small request only: completing a multipart upload ignores it on some
# stores.
_SINGLE_PUT_BYTES = 64 * 2**20
_T = TypeVar("_T")
_Ask = Callable[..., Any]


class Store:
    """A folder at `url`: a local path, `s3://bucket/prefix`, or any other fsspec URL.

    Credentials and endpoints come from the environment, as the storage's own client reads them.
    Keys are relative to the folder, separated by `/`. Missing objects raise FileNotFoundError,
    everything else that storage answers raises StorageError: at once if asking again is of no use,
    else when `patience` is at its end.
    """

    def __init__(self, url: str, patience: RetryPolicy = _DEFAULT_PATIENCE) -> None:
        self.protocol: str = get_protocol(stringify_path(url))
        self.is_local = self.protocol in LOCAL
        self.patience = patience
        if not self.is_local and has_magic(url):
            raise ConfigError(f"storage {url!r} cannot be used: '*', '?' and '[' are wildcards")
        try:
            self._fs = filesystem(self.protocol, patience)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"storage {url!r} cannot be used: {error}") from error
        self._root: str = self._fs._strip_protocol(url)  # noqa: SLF001 (fsspec's only way)
        self.url = self._root if self.is_local else url.rstrip("/")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.url, self.patience)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """The fsspec filesystem behind the folder, for a library that wants one."""
        return self._fs

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
        return self._at(self.uri(key), self.patience)

    def with_retries(self, patience: RetryPolicy) -> Self:
        """The same folder, waited for so long."""
        return self._at(self.url, patience)

    def read(self, key: str) -> bytes:
        """The whole object."""
        path = self.path(key)
        return self._run("read", key, lambda ask: bytes(ask("cat_file", path)))

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
        return self._run(
            "read",
            key,
            lambda ask: bytes(ask("cat_file", path, start=start, end=end)),
            size_bytes=end - start,
        )

    def size_bytes(self, key: str) -> int:
        """The object's size."""
        path = self.path(key)
        return self._run("stat", key, lambda ask: int(ask("info", path)["size"]))

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        """Write or replace the object; readers see the old bytes or the new ones.

        `durable` waits until a local disk has it; an object store always does. This method, like
        all that change something, raises ConfigError if a link on the way to `key` leads out of
        the folder.
        """
        path = self._path_inside(key)

        def once(ask: _Ask) -> None:
            if not self.is_local:
                ask("pipe_file", path, data)
                return
            with local_disk.temporary_beside(path) as temporary:
                local_disk.write_new(temporary, data, durable=durable)
                local_disk.replace(path, temporary, durable=durable)

        self._run("write", key, once, writing=True, size_bytes=len(data))

    def create(self, key: str, data: bytes) -> None:
        """Write the object if it does not exist: never half, never over another.

        Of any number of callers with different bytes one succeeds; the others get
        FileExistsError. One that finds its own bytes succeeds too: a client whose first answer
        was lost on the way asks again, and must not take itself for another. The object is
        durable when this returns.
        """
        if len(data) >= _SINGLE_PUT_BYTES:
            raise ValueError(f"{self.uri(key)}: {len(data)} bytes are too many to create")
        path = self._path_inside(key)

        def once(ask: _Ask) -> None:
            try:
                if self.is_local:
                    local_disk.create(path, data)
                else:
                    ask("pipe_file", path, data, mode="create")
            except OSError as error:
                if may_pass(error):
                    raise
                if not (isinstance(error, FileExistsError) or _is_there(ask, path)):
                    raise
                if ask("cat_file", path) != data:
                    raise FileExistsError(f"{self.uri(key)} exists") from error

        self._run("create", key, once, writing=True, size_bytes=len(data))

    def put(self, key: str, data: memoryview) -> str:
        """Store the bytes, from where they lie, as a new object, in parallel parts; their digest.

        Durable when this returns. On a disk, a reader may see a part of it before: it counts once
        a manifest says so.
        """
        path = self._path_inside(key)

        def once(left_s: float) -> str:
            return bulk.put(self._fs, path, data, self.patience, left_s)

        return self._retried("write", key, once, writing=True, size_bytes=len(data))

    def load(self, key: str, size_bytes: int) -> tuple[memoryview, str]:
        """The object's bytes, which may be changed, and their digest; from parallel parts.

        The digest is empty if the object is not of that size.
        """
        path = self.path(key)

        def once(left_s: float) -> tuple[memoryview, str]:
            return bulk.load(self._fs, path, size_bytes, self.patience, left_s)

        return self._retried("read", key, once, size_bytes=size_bytes)

    def link_on_the_way(self, key: str) -> str:
        """The first symbolic link below the folder on the way to the object; empty: there is none.

        Only somebody else can have made one.
        """
        if not self.is_local:
            return ""
        names = self.path(key).removeprefix(self._root).strip("/").split("/")
        ways = ("/".join([self._root, *names[: count + 1]]) for count in range(len(names)))
        return next(filter(os.path.islink, ways), "")

    def upload(self, local: str | Path, key: str) -> None:
        """Copy a local file into the folder, in parallel parts where the storage has them.

        The copy is whole and durable when this returns; before, readers see what was there.
        """
        path, size_bytes = self._path_inside(key), os.path.getsize(local)

        def once(ask: _Ask) -> None:
            if self.is_local:
                local_disk.copy_file(str(local), path)
            else:
                ask("put_file", str(local), path)

        self._run("upload", key, once, writing=True, size_bytes=size_bytes)

    def download(self, key: str, local: str | Path) -> None:
        """Copy the object into a local file, in parallel parts where the storage has them."""
        path, size_bytes = self.path(key), self.size_bytes(key)
        self._run(
            "download", key, lambda ask: ask("get_file", path, str(local)), size_bytes=size_bytes
        )

    def copy(self, key: str, target: Store, target_key: str) -> None:
        """Copy the object to another folder of the same storage, on the server's side.

        The copy is whole and durable when this returns; before, readers see what was there.
        """
        self._copy(key, target, target_key, local_disk.copy_file)

    def link_or_copy(self, key: str, target: Store, target_key: str) -> None:
        """Give the object a second name on a local disk, or copy it where there are no links.

        The two names share their bytes on a disk, and no operation of Store changes bytes in
        place. Durable when this returns; before, readers see what was there.
        """
        self._copy(key, target, target_key, local_disk.link_or_copy_file)

    def exists(self, key: str) -> bool:
        """Whether the object is there."""
        path = self.path(key)
        return self._run("stat", key, lambda ask: _is_there(ask, path))

    def names(self, key: str = "") -> list[str]:
        """The names directly below `key`, sorted; empty if nothing is there."""
        folder = self.path(key).rstrip("/")

        def once(ask: _Ask) -> set[str]:
            try:
                return {path.rstrip("/") for path in ask("ls", folder, detail=False)}
            except (FileNotFoundError, NotADirectoryError):
                return set()

        found = self._run("list", key, once)
        # An object that marks the folder, or the object itself, lists as its own content.
        names = {posixpath.basename(path) for path in found - {folder}}
        return sorted(name for name in names if not name.startswith(local_disk.TEMPORARY))

    def tree(self, key: str = "", max_depth: int = 0) -> dict[str, dict[str, Any]]:
        """What the filesystem tells of the object, or of each in the folder and below it, by key.

        `max_depth` is how many levels below it are looked at; 0: all. Raises FileNotFoundError if
        nothing is there.
        """
        path = self.path(key).rstrip("/")

        def once(ask: _Ask) -> dict[str, dict[str, Any]]:
            info = ask("info", path or "/")
            if info["type"] != "directory":
                return {path: info}
            found = ask("find", path or "/", maxdepth=max_depth or None, detail=True)
            return {name: one for name, one in found.items() if one["type"] == "file"}

        found = self._run("list", key, once)
        root = self._root.rstrip("/")
        return {name.removeprefix(root).lstrip("/"): one for name, one in found.items()}

    def sizes(self, key: str = "") -> dict[str, int]:
        """The sizes of the objects below `key`, also in its folders, by their names from there."""
        folder = self.path(key).rstrip("/") or "/"

        def once(ask: _Ask) -> dict[str, int | None]:
            try:
                return {
                    one["name"].rstrip("/").removeprefix(folder).lstrip("/"): one["size"]
                    for one in self._below(ask, folder)
                }
            except (FileNotFoundError, NotADirectoryError) as error:
                if not _is_there(ask, folder):
                    return {}
                # A disk is asked for each file, and one was renamed or deleted in that moment.
                raise UnfinishedError("what is in it changes") from error

        found = self._run("list", key, once)
        return {
            # A server of plain HTTP may list no sizes.
            name: self.size_bytes(f"{key}/{name}".lstrip("/")) if size is None else int(size)
            for name, size in sorted(found.items())
            # As in `names`: what marks the folder is no object in it.
            if name and not posixpath.basename(name).startswith(local_disk.TEMPORARY)
        }

    def _below(self, ask: _Ask, folder: str) -> Iterator[dict[str, Any]]:
        """What the filesystem tells of each object below the folder, which may be itself."""
        if self.protocol in S3:
            yield from ask("find", folder, detail=True).values()
            return
        # fsspec's own `find` leaves out the folders that it cannot list.
        for one in ask("ls", folder, detail=True):
            if one["type"] != "directory":
                yield one
            elif one["name"].rstrip("/") != folder:
                yield from self._below(ask, one["name"].rstrip("/"))

    def delete(self, key: str) -> None:
        """Delete the object, or the folder with all that is in it; fine if it is gone.

        On a disk a link is deleted, never what it points to.
        """
        path = self._path_inside(key)

        def once(ask: _Ask) -> None:
            if self.is_local:
                local_disk.delete(path)
                return
            try:
                ask("rm", glob.escape(path), recursive=True)
            except FileNotFoundError:
                return
            # s3fs does not say which objects the server left in place.
            if _is_there(ask, path):
                raise UnfinishedError("some of it is still there")

        self._run("delete", key, once)

    def sweep(self) -> None:
        """Delete the temporary files of processes that were killed; only a disk has any."""
        if self.is_local:
            local_disk.sweep(self._root)

    def unfinished_uploads(self) -> list[uploads.Upload]:
        """Uploads below the folder that are under way, or whose process was killed: only on S3."""
        if self.protocol not in S3:
            return []
        return self._run("list", "", lambda ask: list(uploads.unfinished(ask, self._root)))

    def abort(self, upload: uploads.Upload) -> None:
        """Delete the parts of an unfinished upload; fine if it is gone."""
        path = self.path(upload.key)
        self._run("delete", upload.key, lambda ask: uploads.abort(ask, path, upload.id))

    def probe(self) -> None:
        """Check that the folder can be written, also in bulk, and that `create` has one winner.

        Raises StorageError, naming what failed, within seconds.
        """
        budget_s = min(self.patience.budget_s, _PROBE_BUDGET_S)
        store = self.with_retries(replace(self.patience, budget_s=budget_s))
        key = f"probe-{uuid.uuid4().hex}"
        store.create(key, b"1")
        try:
            store.create(key, b"2")
        except FileExistsError:
            pass
        else:
            raise StorageError(
                f"{self.url} lets an object be created twice: evertrain needs storage with "
                "conditional create (If-None-Match on S3, exclusive create on a disk)"
            )
        finally:
            store.delete(key)
        # Large objects go through a client of their own on S3.
        store.put(key, memoryview(b"1"))
        store.delete(key)

    def _path_inside(self, key: str) -> str:
        """The path of an object that is to be changed: it lies where it seems to."""
        path = self.path(key).rstrip("/")
        if self.is_local:
            local_disk.check_inside(path, self._root)
        return path

    def _at(self, url: str, patience: RetryPolicy) -> Self:
        """A store of the same kind at another address."""
        return type(self)(url, patience)

    def _copy(
        self, key: str, target: Store, target_key: str, copy_local: Callable[[str, str], None]
    ) -> None:
        source, path = self.path(key), target._path_inside(target_key)
        if target.protocol != self.protocol:
            raise ValueError(f"{self.uri(key)} and {target.url} are not on the same storage")
        size_bytes = self.size_bytes(key)

        def once(ask: _Ask) -> None:
            if self.is_local:
                copy_local(source, path)
            else:
                ask("cp_file", source, path)  # s3fs copies large objects in parts

        target._run("copy", target_key, once, writing=True, size_bytes=size_bytes)

    def _run(
        self,
        action: str,
        key: str,
        operation: Callable[[_Ask], _T],
        *,
        writing: bool = False,
        size_bytes: int = 0,
    ) -> _T:
        """What the operation, which asks the filesystem, returns; as `_retried`."""

        def once(left_s: float) -> _T:
            return operation(partial(self._ask, left_s))

        return self._retried(action, key, once, writing=writing, size_bytes=size_bytes)

    def _retried(
        self,
        action: str,
        key: str,
        operation: Callable[[float], _T],
        *,
        writing: bool = False,
        size_bytes: int = 0,
    ) -> _T:
        """What the operation, given the seconds left, returns; our patience, and our errors."""
        uri = self.uri(key)
        with storage_errors(action, uri, writing=writing):
            budget_s = self.patience.for_bytes(size_bytes)
            return retried(operation, f"cannot {action} {uri}", budget_s)

    def _ask(self, left_s: float, method: str, *args: object, **options: object) -> Any:
        """Call the filesystem; one that works in the background is left when time is up."""
        if self._fs.async_impl:
            options["timeout"] = left_s
        return getattr(self._fs, method)(*args, **options)


def _is_there(ask: _Ask, path: str) -> bool:
    """Whether there is an object or a folder; `exists` of fsspec takes any error for a no."""
    try:
        ask("info", path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
