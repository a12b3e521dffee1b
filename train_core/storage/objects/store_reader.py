"""The reading half of a `Store`: objects and listings.

Small objects are read whole, by fsspec. `load` is for a checkpoint's large files: on S3 obstore
fetches them in parallel parts, on a disk they are mapped (`disk_files.map_file`). Nothing goes
through `open()`, whose single stream is an order of magnitude slower on an object store.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from train_core.errors import CheckpointError, EvertrainError
from train_core.storage.objects.backends.disk_files import TEMPORARY
from train_core.storage.objects.retry_policy import UnfinishedError
from train_core.storage.objects.store_folder import StoreFolder

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class StoreReader(StoreFolder):
    """A folder whose objects are read and listed; errors as in `StoreFolder`."""

    def verified(
        self,
        key: str,
        read: Callable[[], _T],
        damage: type[EvertrainError] = CheckpointError,
    ) -> _T:
        """What `read` gives, which reads the object and raises `damage` if it is not as committed.

        It is called once more then, past the caches of this machine: a bit that flipped in memory,
        or on the way, is no damage of the object. Everything that verifies what it reads does it
        here, so that two bad reads are needed before anything is refused or quarantined.
        """
        try:
            return read()
        except damage as error:
            fault = str(error)
        self._backend.drop_caches(self.path(key), self._guard)
        found = read()
        _log.warning(
            "%s was read wrongly once, and rightly when it was read again (%s). If this happens "
            "more often, have the memory and the disks of this machine checked",
            self.uri(key),
            fault,
        )
        return found

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
