"""A folder on any fsspec storage, with the few operations that evertrain is built from.

Small objects are read and written whole; bulk data goes through parallel parts (`pipe_file`,
`cat_file`, `put_file`, `get_file`), never through `open()`, whose single stream is an order of
magnitude slower on an object store. `create` writes an object that must not exist yet, in one
step that has one winner: it is what every commit and every lease stands on.
"""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
from fsspec.core import has_magic
from fsspec.utils import get_protocol, stringify_path

from train_core.errors import ConfigError, StorageError


class Store:
    """A folder at `url`: a local path, `s3://bucket/prefix`, or any other fsspec URL.

    Credentials and endpoints come from the environment, as the storage's own client reads them.
    Keys are relative to the folder, separated by `/`. Missing objects raise FileNotFoundError,
    everything else that storage answers raises StorageError.
    """

    def __init__(self, url: str) -> None:
        protocol = get_protocol(stringify_path(url))
        self.is_local = protocol in ("file", "local")
        self.is_s3 = protocol in ("s3", "s3a")
        try:
            # A listing must show what other processes wrote a moment ago.
            self._fs = fsspec.filesystem(protocol, **({} if self.is_local else _FRESH))
        except (ValueError, ImportError) as error:
            raise ConfigError(f"storage {url!r} cannot be used: {error}") from error
        if not self.is_local and has_magic(url):
            raise ConfigError(f"storage {url!r} cannot be used: '*', '?' and '[' are wildcards")
        self._root: str = self._fs._strip_protocol(url)  # noqa: SLF001 (fsspec's only way)
        self.url = self._root if self.is_local else url.rstrip("/")

    def __reduce__(self) -> tuple[object, ...]:
        return Store, (self.url,)

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

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

    def child(self, key: str) -> Store:
        """The folder below this one."""
        return Store(self.uri(key))

    def read(self, key: str) -> bytes:
        """The whole object."""
        with storage_errors("read", self.uri(key)):
            return bytes(self._fs.cat_file(self.path(key)))

    def chunks(self, key: str, size_bytes: int = 16 * 2**20) -> Iterator[bytes]:
        """The object piece by piece, in bounded memory."""
        with storage_errors("read", self.uri(key)):
            end = int(self._fs.info(self.path(key))["size"])
            for start in range(0, end, size_bytes):
                stop = min(start + size_bytes, end)
                yield bytes(self._fs.cat_file(self.path(key), start=start, end=stop))

    def size_bytes(self, key: str) -> int:
        """The object's size."""
        with storage_errors("stat", self.uri(key)):
            return int(self._fs.info(self.path(key))["size"])

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        """Write or replace the object; readers see the old bytes or the new ones.

        `durable` waits until a local disk has it; an object store always does.
        """
        with storage_errors("write", self.uri(key), writing=True):
            if self.is_local:
                with _new_local_file(self.path(key), data, durable=durable) as temporary:
                    os.replace(temporary, self.path(key))
                if durable:
                    sync_path(os.path.dirname(self.path(key)))
            else:
                self._fs.pipe_file(self.path(key), data)

    def create(self, key: str, data: bytes) -> None:
        """Write the object if it does not exist: never half, never over another.

        Of any number of callers with different bytes one succeeds; the others get
        FileExistsError. One that finds its own bytes succeeds too: a client whose first answer
        was lost on the way asks again, and must not take itself for another. The object is
        durable when this returns.
        """
        if len(data) >= _SINGLE_PUT_BYTES:
            raise ValueError(f"{self.uri(key)}: {len(data)} bytes are too many to create")
        path = self.path(key)
        with storage_errors("create", self.uri(key), writing=True):
            try:
                if self.is_local:
                    with _new_local_file(path, data, durable=True) as temporary:
                        os.link(temporary, path)
                    sync_path(os.path.dirname(path))
                else:
                    self._fs.pipe_file(path, data, mode="create")
            except OSError as error:
                if not (isinstance(error, FileExistsError) or self._fs.exists(path)):
                    raise
                if self.read(key) != data:
                    raise FileExistsError(f"{self.uri(key)} exists") from error

    def upload(self, local: str | Path, key: str) -> None:
        """Copy a local file into the folder, in parallel parts where the storage has them.

        The copy is durable when this returns.
        """
        path = self.path(key)
        with storage_errors("upload", self.uri(key), writing=True):
            if self.is_local:
                make_folder(os.path.dirname(path))
            self._fs.put_file(str(local), path)
            if self.is_local:
                sync_path(path)
                sync_path(os.path.dirname(path))

    def download(self, key: str, local: str | Path) -> None:
        """Copy the object into a local file, in parallel parts where the storage has them."""
        with storage_errors("download", self.uri(key)):
            self._fs.get_file(self.path(key), str(local))

    def copy(self, key: str, target: Store, target_key: str) -> None:
        """Copy the object to another folder of the same storage, on the server's side.

        The copy is durable when this returns.
        """
        path = target.path(target_key)
        with storage_errors("copy", target.uri(target_key), writing=True):
            if self.is_local:
                make_folder(os.path.dirname(path))
            self._fs.cp_file(self.path(key), path)
            if self.is_local:
                sync_path(path)
                sync_path(os.path.dirname(path))

    def exists(self, key: str) -> bool:
        """Whether the object is there."""
        with storage_errors("stat", self.uri(key)):
            return bool(self._fs.exists(self.path(key)))

    def names(self, key: str = "") -> list[str]:
        """The names directly below `key`, sorted; empty if nothing is there."""
        folder = self.path(key).rstrip("/")
        with storage_errors("list", self.uri(key)):
            try:
                found = {path.rstrip("/") for path in self._fs.ls(folder, detail=False)}
            except (FileNotFoundError, NotADirectoryError):
                return []
        # An object that marks the folder, or the object itself, lists as its own content.
        names = {posixpath.basename(path) for path in found - {folder}}
        return sorted(name for name in names if not name.startswith(_TEMPORARY))

    def delete(self, key: str) -> None:
        """Delete the object, or the folder with all that is in it; fine if it is gone."""
        with storage_errors("delete", self.uri(key)):
            try:
                self._fs.rm(self.path(key), recursive=True)
            except FileNotFoundError:
                return

    def probe(self) -> None:
        """Check that the folder can be written and that `create` has one winner.

        Raises StorageError, naming what failed.
        """
        key = f"probe-{uuid.uuid4().hex}"
        self.create(key, b"1")
        try:
            self.create(key, b"2")
        except FileExistsError:
            return
        finally:
            self.delete(key)
        raise StorageError(
            f"{self.url} lets an object be created twice: evertrain needs storage with "
            "conditional create (If-None-Match on S3, exclusive create on a disk)"
        )


_FRESH = {"use_listings_cache": False}
_TEMPORARY = ".tmp-"
# A condition holds for one small request only: completing a multipart upload ignores it on some
# stores.
_SINGLE_PUT_BYTES = 64 * 2**20


@contextmanager
def storage_errors(action: str, uri: str, *, writing: bool = False) -> Iterator[None]:
    """Raise what went wrong as one of the errors that Store promises, naming the object."""
    try:
        yield
    except (FileExistsError, StorageError):
        raise
    except FileNotFoundError as error:
        if not writing:
            raise FileNotFoundError(f"{uri} does not exist") from error
        missing = error.filename or "its bucket"
        raise StorageError(f"cannot {action} {uri}: {missing} does not exist") from error
    except Exception as error:
        raise StorageError(f"cannot {action} {uri}: {type(error).__name__}: {error}") from error


@contextmanager
def _new_local_file(path: str, data: bytes, *, durable: bool = False) -> Iterator[str]:
    """A complete file beside `path`, deleted at the end unless it was moved away."""
    folder = os.path.dirname(path)
    make_folder(folder)
    temporary = os.path.join(folder, f"{_TEMPORARY}{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        Path(temporary).unlink(missing_ok=True)


def make_folder(folder: str) -> None:
    """Make the folder and those above it, each durable in the one above."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folder(above)
    try:
        os.mkdir(folder)
    except FileExistsError as error:
        if not os.path.isdir(folder):
            raise NotADirectoryError(f"{folder} is a file, not a folder") from error
    sync_path(above)


def sync_path(path: str) -> None:
    """Wait until the disk has the file's bytes, or the folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
