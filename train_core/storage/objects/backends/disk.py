"""Local disks, and what is mounted as one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import fsspec

from train_core.errors import CheckpointError
from train_core.storage.objects import regular_files
from train_core.storage.objects.backends import disk_files
from train_core.storage.objects.backends.fsspec_backend import Backend
from train_core.storage.objects.digest_algorithm import new_digest

PROTOCOLS = ("file", "local")


class DiskBackend(Backend):
    """A local disk: files are whole, durable where that is promised, and never outside."""

    is_local = True

    def _filesystem(self, protocol: str) -> fsspec.AbstractFileSystem:
        return fsspec.filesystem(protocol)

    def read(
        self, left_s: float, path: str, root: str | None, max_bytes: int | None = None
    ) -> bytes:
        """The file's bytes, at most `max_bytes`."""
        return regular_files.read(path, root, max_bytes)

    def piece(self, left_s: float, path: str, root: str | None, start: int, end: int) -> bytes:
        """The file's bytes from `start` to `end`."""
        return regular_files.piece(path, root, start, end)

    def size(self, left_s: float, path: str, root: str | None) -> int:
        """The file's size."""
        if root is None:
            return super().size(left_s, path, root)
        return regular_files.size_of(path, root)

    def load(
        self, left_s: float, path: str, root: str | None, size_bytes: int
    ) -> tuple[memoryview, str]:
        """The file as memory, and its digest; as `Backend.load`, but without a limit of time."""
        return disk_files.map_file(path, size_bytes, root)

    def drop_caches(self, path: str, root: str | None) -> None:
        """Drop the file's pages from the system's cache, but those that are mapped or unwritten."""
        with (
            suppress(OSError, CheckpointError, AttributeError),
            regular_files.opened(path, root) as file,
        ):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def names(self, left_s: float, folder: str) -> set[str]:
        """The names directly below. Raises FileNotFoundError or NotADirectoryError."""
        return set(os.listdir(folder or "/"))

    def in_folders(self, left_s: float, folder: str) -> dict[str, set[str]]:
        """The names in each folder directly below, by the folder's name."""
        found = {}
        with os.scandir(folder or "/") as entries:
            below = [one for one in entries if one.is_symlink() or one.is_dir()]
        for one in below:
            try:
                found[one.name] = set(os.listdir(one.path))
            except OSError as error:
                # It was deleted meanwhile, or is a link to a file, to nothing or to itself.
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
        return found

    def pass_on(
        self,
        left_s: float,
        path: str,
        root: str | None,
        size_bytes: int,
        write: Callable[[memoryview], object],
    ) -> str:
        """Give `write` the file's bytes; as `Backend.pass_on`, but without a limit of time."""
        with regular_files.opened(path, root) as file:
            return disk_files.read_through(file, size_bytes, write)

    def write(self, left_s: float, path: str, data: bytes, *, durable: bool) -> None:
        """Write or replace a file, whole."""
        with disk_files.temporary_beside(path) as temporary:
            disk_files.write_new(temporary, data, durable=durable)
            disk_files.replace(path, temporary, durable=durable)

    def create(self, left_s: float, path: str, data: bytes) -> None:
        """Write a file that must not exist yet; durable and whole, or not there.

        Every commit and lease stands on it: `link` fails where there is a file.
        """
        with disk_files.temporary_beside(path) as temporary:
            disk_files.write_new(temporary, data, durable=True)
            disk_files.link(temporary, path)
        disk_files.sync(os.path.dirname(path))

    def put(self, left_s: float, path: str, data: memoryview) -> str:
        """Store the bytes as a new file, durable when this returns; their digest.

        A reader may see a part of it before.
        """
        digest = new_digest()
        # The digest is computed while the disk writes.
        with ThreadPoolExecutor(1, "write") as thread:
            written = thread.submit(disk_files.write_large, path, data)
            digest.update(data)
            written.result()
        return digest.hexdigest()

    def upload(self, left_s: float, local: str | Path, path: str) -> None:
        """Copy a local file; whole and durable when this returns."""
        disk_files.copy_file(str(local), path)

    def copy(self, left_s: float, source: str, root: str | None, path: str) -> None:
        """Copy a file; whole and durable when this returns."""
        disk_files.copy_file(source, path, root)

    def link_or_copy(self, left_s: float, source: str, root: str | None, path: str) -> None:
        """Give the file a second name, or copy it where the disk cannot."""
        if root is not None:
            regular_files.size_of(source, root)
        disk_files.link_or_copy_file(source, path)

    def delete(self, left_s: float, path: str) -> None:
        """Delete the file, the link or the folder with all that is in it; fine if it is gone."""
        disk_files.delete(path)

    def check_inside(self, path: str, root: str) -> None:
        """Raise ConfigError if a link on the way to `path` leads out of the folder `root`."""
        disk_files.check_inside(path, root)

    def sweep(self, root: str) -> None:
        """Delete the temporary files below `root` of processes that were killed."""
        disk_files.sweep(root, self.retry_policy.abandoned_s)
