"""What a local disk needs to keep Store's promises: whole files, durable names, no way out."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from train_core.errors import ConfigError
from train_core.storage.objects import regular_files
from train_core.storage.objects.digest_algorithm import new_digest

BLOCK_BYTES = 4096
"""Memory that begins at a multiple of it is written past the system's cache."""
TEMPORARY = ".tmp-"
_WRITER = re.compile(re.escape(TEMPORARY) + r"(\d{1,9})-")
_CHUNK_BYTES = 2**20
_NO_LINK_HERE = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES}
)


@contextmanager
def temporary_beside(path: str) -> Iterator[str]:
    """A free path beside `path`, in a folder that exists; deleted at the end if still there."""
    folder = os.path.dirname(path)
    make_folder(folder)
    temporary = os.path.join(folder, f"{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}")
    try:
        yield temporary
    finally:
        Path(temporary).unlink(missing_ok=True)


def sweep(folder: str, abandoned_s: float) -> None:
    """Delete what `temporary_beside` left below the folder where a process was killed in it.

    Another machine's process counts as killed if its file has not changed for `abandoned_s`.
    """
    found = [
        path
        for path in Path(folder).rglob(f"{TEMPORARY}*")
        if not ((writer := _WRITER.match(path.name)) and _is_alive(int(writer[1])))
    ]
    if not found:
        return
    now = _now_of_disk(folder)
    for path in found:
        with suppress(FileNotFoundError):
            # Another machine, whose processes are not seen here, may just be writing.
            if now - path.stat().st_mtime > abandoned_s:
                path.unlink()


def _now_of_disk(folder: str) -> float:
    """The time by the clock of whichever server keeps the disk: that of a file just written."""
    with temporary_beside(os.path.join(folder, "now")) as path:
        write_new(path, b"", durable=True)
        return os.stat(path).st_mtime


def _is_alive(pid: int) -> bool:
    # Not psutil's: models in MLflow are loaded with this module, and without that library.
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def write_new(path: str, data: bytes, *, durable: bool) -> None:
    """Write a file that must not exist yet."""
    with open(path, "xb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def write_large(path: str, data: memoryview) -> None:
    """Write a file that must not exist yet; durable when this returns.

    Past the system's cache where disk and memory allow it: the copy into the cache would take
    its time from the training.
    """
    folder = os.path.dirname(path)
    make_folder(folder)
    with open(path, "xb", buffering=0) as file:
        try:
            written = _write_past_cache(file.fileno(), data)
            while written < len(data):
                written += file.write(data[written:])
            os.fsync(file.fileno())
        except OSError:
            # It may be tried again, and the disk may be full.
            os.unlink(path)
            raise
    sync(folder)


def _write_past_cache(descriptor: int, data: memoryview) -> int:
    """Write the whole blocks, as far as the disk takes them so; the number of bytes written."""
    # Late: models in MLflow are loaded with this module, on systems that have no such thing, too.
    import fcntl

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    end, written = len(data) - len(data) % BLOCK_BYTES, 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | getattr(os, "O_DIRECT", 0))
        while written < end:
            written += os.write(descriptor, data[written:end])
    except OSError:
        # Not on this kind of disk, or not from this memory; a disk that is full says so again.
        pass
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return written


def map_file(path: str, size_bytes: int, root: str | None) -> tuple[memoryview, str]:
    """The file as memory that is shared with the disk's cache until it is changed, and its digest.

    The digest is empty if the file is not of that size. With a `root`, no link below it is
    followed.
    """
    with regular_files.opened(path, root) as file:
        # By reading: what the disk cannot read is an error then, and in a mapping a signal.
        digest = read_through(file, size_bytes)
        if not digest:
            return memoryview(b""), ""
        if not size_bytes:
            return memoryview(bytearray()), digest
        mapped = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY)
    return memoryview(mapped), digest


def read_through(
    file: BufferedReader, size_bytes: int, write: Callable[[memoryview], object] = lambda _: None
) -> str:
    """Give `write` the file's bytes, piece by piece; their digest, empty if it has another size."""
    piece, num_bytes, digest = memoryview(bytearray(_CHUNK_BYTES)), 0, new_digest()
    while num_bytes <= size_bytes and (count := file.raw.readinto(piece)):
        digest.update(piece[:count])
        write(piece[:count])
        num_bytes += count
    return digest.hexdigest() if num_bytes == size_bytes else ""


def replace(path: str, temporary: str, *, durable: bool) -> None:
    """Give the complete file its name; readers see the old one or the new one."""
    os.replace(temporary, path)
    if durable:
        sync(os.path.dirname(path))


def copy_file(source: str, path: str, root: str | None = None) -> None:
    """Copy a file; durable and whole, or not there. With a `root`, no link below it is followed."""
    with temporary_beside(path) as temporary:
        with regular_files.opened(source, root) as file, open(temporary, "xb") as copied:
            shutil.copyfileobj(file, copied, _CHUNK_BYTES)
        sync(temporary)
        replace(path, temporary, durable=True)


def link(source: str, path: str) -> None:
    """Give the file a second name, which no file has. Raises ConfigError where the disk cannot."""
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        raise ConfigError(
            f"the file system of {os.path.dirname(path)} has no hard links ({error.strerror}), "
            "by which evertrain creates a file exactly once: keep the runs on another disk or on "
            "an object store"
        ) from error


def link_or_copy_file(source: str, path: str) -> None:
    """Give the file a second name, or copy it where the disk cannot."""
    with temporary_beside(path) as temporary:
        try:
            os.link(os.path.realpath(source), temporary)
        except OSError as error:
            if error.errno not in _NO_LINK_HERE:
                raise
            shutil.copyfile(source, temporary)
        sync(temporary)
        replace(path, temporary, durable=True)


def check_inside(path: str, root: str) -> None:
    """Raise ConfigError if a link on the way to `path` leads out of `root`.

    The last name may be a link: what is deleted then is the link.
    """
    if path == root:
        return
    folder, inside = os.path.realpath(os.path.dirname(path)), os.path.realpath(root)
    if os.path.commonpath([folder, inside]) != inside:
        raise ConfigError(
            f"{path} leaves the folder {root}: a link in it leads to {folder}. Delete the link"
        )


def delete(path: str) -> None:
    """Delete the file, the link or the folder with all that is in it; fine if it is gone."""
    while os.path.lexists(path):
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.remove(path)
        except FileNotFoundError:  # somebody else deletes the same: see whether all of it is gone
            continue


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
    sync(above)


def sync(path: str) -> None:
    """Wait until the disk has the file's bytes, or the folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
