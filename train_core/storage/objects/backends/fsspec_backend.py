"""The operations that a `Store` needs of a kind of storage, without retries.

`Backend` speaks to a filesystem through fsspec alone, and so serves all that fsspec reaches.
`DiskBackend` and `S3Backend` change the operations that their kind does in another way. Paths are
as the filesystem spells them; `left_s` are the seconds that an operation has left. `Store` tries
again, and gives the errors their names.
"""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec

from train_core.storage.objects.digest_algorithm import digest_of, new_digest
from train_core.storage.objects.reads_in_parts import load_in_parts, pass_on_in_parts
from train_core.storage.objects.regular_files import check_size
from train_core.storage.objects.retry_policy import RetryPolicy, UnfinishedError
from train_core.storage.objects.unfinished_uploads import Upload


class Backend:
    """Any filesystem of fsspec's. Raises ValueError or ImportError where there is none."""

    is_local = False
    """Whether it is a disk of this machine, or looks like one."""

    def __init__(self, protocol: str, retry_policy: RetryPolicy) -> None:
        self.retry_policy = retry_policy
        self.fs = self._filesystem(protocol)

    def _filesystem(self, protocol: str) -> fsspec.AbstractFileSystem:
        # A listing must show what other processes wrote a moment ago.
        return fsspec.filesystem(protocol, use_listings_cache=False)

    def ask(self, left_s: float, method: str, *args: object, **options: object) -> Any:
        """Call the filesystem; one that works in the background is left when time is up."""
        if self.fs.async_impl:
            options["timeout"] = left_s
        return getattr(self.fs, method)(*args, **options)

    def exists(self, left_s: float, path: str) -> bool:
        """Whether there is an object or a folder; `exists` of fsspec takes any error for a no."""
        try:
            self.ask(left_s, "info", path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def below(self, left_s: float, folder: str) -> Iterator[dict[str, Any]]:
        """What the filesystem tells of each object below the folder, which may be itself."""
        # fsspec's own `find` leaves out the folders that it cannot list.
        for one in self.ask(left_s, "ls", folder, detail=True):
            if one["type"] != "directory":
                yield one
            elif one["name"].rstrip("/") != folder:
                yield from self.below(left_s, one["name"].rstrip("/"))

    def read(
        self, left_s: float, path: str, root: str | None, max_bytes: int | None = None
    ) -> bytes:
        """The object's bytes. Raises CheckpointError if there are more than `max_bytes`.

        On a disk, no link below `root` is followed, and nothing but a regular file is read, unless
        it is None; so in all methods that read.
        """
        if max_bytes is not None:
            check_size(path, self.size(left_s, path, root), max_bytes)
        return bytes(self.ask(left_s, "cat_file", path))

    def piece(self, left_s: float, path: str, root: str | None, start: int, end: int) -> bytes:
        """The object's bytes from `start` to `end`."""
        return bytes(self.ask(left_s, "cat_file", path, start=start, end=end))

    def size(self, left_s: float, path: str, root: str | None) -> int:
        """The object's size."""
        return int(self.ask(left_s, "info", path)["size"])

    def names(self, left_s: float, folder: str) -> set[str]:
        """The names directly below. Raises FileNotFoundError or NotADirectoryError, or gives none.

        An object that marks the folder, or the object itself, lists as its own content.
        """
        found = {path.rstrip("/") for path in self.ask(left_s, "ls", folder, detail=False)}
        return {posixpath.basename(path) for path in found - {folder}}

    def in_folders(self, left_s: float, folder: str) -> dict[str, set[str]]:
        """The names in each folder directly below, by the folder's name.

        Raises FileNotFoundError if there is no such folder; as a storage without folders has those
        only in which something lies.
        """
        found = {}
        for one in self.ask(left_s, "ls", folder, detail=True):
            path = one["name"].rstrip("/")
            if one["type"] == "directory" and path != folder:
                found[posixpath.basename(path)] = self.names(left_s, path)
        return found

    def drop_caches(self, path: str, root: str | None) -> None:
        """Have the next read of the object come from the storage itself, as far as possible."""
        self.fs.invalidate_cache(path)

    def load(
        self, left_s: float, path: str, root: str | None, size_bytes: int
    ) -> tuple[memoryview, str]:
        """The object's bytes, which may be changed, and their digest, or "" if it has another size.

        Raises TimeoutError when `left_s` is over, except on a disk; other errors as builtin ones.
        """
        # What other storages answer to a range beyond the end is not documented.
        if self.fs.info(path)["size"] != size_bytes:
            return memoryview(b""), ""
        if not size_bytes:
            return memoryview(bytearray()), new_digest().hexdigest()
        return load_in_parts(partial(self.fs.cat_file, path), size_bytes, left_s)

    def pass_on(
        self,
        left_s: float,
        path: str,
        root: str | None,
        size_bytes: int,
        write: Callable[[memoryview], object],
    ) -> str:
        """Give `write` the object's bytes, in their order and in bounded memory; their digest.

        As `load`, also in what it raises.
        """
        if self.fs.info(path)["size"] != size_bytes:
            return ""
        if not size_bytes:
            return new_digest().hexdigest()
        return pass_on_in_parts(partial(self.fs.cat_file, path), size_bytes, left_s, write)

    def write(self, left_s: float, path: str, data: bytes, *, durable: bool) -> None:
        """Write or replace a small object, whole."""
        self.ask(left_s, "pipe_file", path, data)

    def create(self, left_s: float, path: str, data: bytes) -> None:
        """Write a small object that must not exist yet; durable and whole, or not there."""
        self.ask(left_s, "pipe_file", path, data, mode="create")

    def put(self, left_s: float, path: str, data: memoryview) -> str:
        """Store the bytes as a new object, durable when this returns; their digest."""
        digest = digest_of(data)
        # fsspec wants to be given `bytes`, a copy.
        self.fs.pipe_file(path, bytes(data))
        return digest

    def upload(self, left_s: float, local: str | Path, path: str) -> None:
        """Copy a local file; whole and durable when this returns."""
        self.ask(left_s, "put_file", str(local), path)

    def copy(self, left_s: float, source: str, root: str | None, path: str) -> None:
        """Copy an object within the storage; whole and durable when this returns."""
        self.ask(left_s, "cp_file", source, path)  # s3fs copies large objects in parts

    def link_or_copy(self, left_s: float, source: str, root: str | None, path: str) -> None:
        """Give the object a second name, or copy it where there are no links."""
        self.copy(left_s, source, root, path)

    def delete(self, left_s: float, path: str) -> None:
        """Delete the object, or the folder with all that is in it; fine if it is gone."""
        try:
            self.ask(left_s, "rm", glob.escape(path), recursive=True)
        except FileNotFoundError:
            return
        # s3fs does not say which objects the server left in place.
        if self.exists(left_s, path):
            raise UnfinishedError("some of it is still there")

    def check_inside(self, path: str, root: str) -> None:
        """Raise ConfigError if a link on the way to `path` leads out of the folder `root`."""

    def sweep(self, root: str) -> None:
        """Delete the temporary files below `root` of processes that were killed."""

    def unfinished_uploads(self, left_s: float, root: str) -> list[Upload]:
        """Uploads below `root` that are under way, or whose process was killed."""
        return []

    def abort(self, left_s: float, path: str, upload_id: str) -> None:
        """Delete the parts of an unfinished upload; fine if it is gone."""
        raise NotImplementedError(f"{type(self).__name__} has no unfinished uploads")
