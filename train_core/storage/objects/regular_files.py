"""Regular files below a folder, opened without following links: for what nobody vouches for.

Whoever can write into a storage can put links, pipes and devices there. A link may lead out of the
folder, and the opening of a pipe waits for its other end. So each folder on the way is opened
relative to the one above it, and no link is followed; the file is looked at before it is opened,
as opening a device may do something, and again afterwards. The folder itself may be a link: that
is where its owner wants it.

Where `root` is None, a file is opened as the system does it: a user's data may be behind links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import accumulate

from train_core.errors import CheckpointError

_FOLDER = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# A pipe that took the file's place just now is not waited for.
_FILE = os.O_RDONLY | os.O_CLOEXEC | _NO_LINK | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def opened(path: str, root: str | None) -> Iterator[BufferedReader]:
    """The file, open for reading.

    Raises CheckpointError if a link below `root` leads to it, or if it is not a regular file, and
    FileNotFoundError or IsADirectoryError as `open` does.
    """
    if root is None:
        with open(path, "rb") as file:
            yield file
        return
    with _folder_of(path, root) as (folder, name):
        _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
        try:
            descriptor = os.open(name, _FILE, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _is_link(path) from error
            raise
    with open(descriptor, "rb") as file:
        _check_regular(os.fstat(descriptor), path)
        yield file


def read(path: str, root: str | None, max_bytes: int | None = None) -> bytes:
    """The file's bytes. Raises CheckpointError if there are more than `max_bytes`."""
    with opened(path, root) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if max_bytes is None:
            return file.read()
        check_size(path, size_bytes, max_bytes)
        # One more: it may be growing.
        data = file.read(size_bytes + 1)
        check_size(path, len(data), max_bytes)
        return data


def check_size(where: str, size_bytes: int, max_bytes: int) -> None:
    """Raise CheckpointError if there are more than `max_bytes`."""
    if size_bytes > max_bytes:
        raise CheckpointError(
            f"{where}: {size_bytes} bytes or more; such a file has at most {max_bytes}"
        )


def piece(path: str, root: str | None, start: int, end: int) -> bytes:
    """The file's bytes from `start` to `end`, or to the file's own end."""
    with opened(path, root) as file:
        file.seek(start)
        return file.read(end - start)


def size_of(path: str, root: str) -> int:
    """The file's size. Raises what `opened` does."""
    with _folder_of(path, root) as (folder, name):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    _check_regular(found, path)
    return found.st_size


@contextmanager
def _folder_of(path: str, root: str) -> Iterator[tuple[int, str]]:
    """The folder that the file is in, open, and the file's name in it."""
    names = path.removeprefix(root).strip("/").split("/")
    folder = os.open(root, _FOLDER)
    try:
        for above in accumulate(names[:-1], "{}/{}".format):
            name = above.rpartition("/")[2]
            try:
                below = os.open(name, _FOLDER | _NO_LINK, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    _check_no_link(folder, name, f"{root.rstrip('/')}/{above}", path)
                raise
            os.close(folder)
            folder = below
        yield folder, names[-1] or "."
    finally:
        os.close(folder)


def _check_no_link(folder: int, name: str, way: str, path: str) -> None:
    if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise _is_link(path, way)


def _check_regular(found: os.stat_result, path: str) -> None:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if stat.S_ISLNK(mode):
        raise _is_link(path)
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    raise CheckpointError(
        f"{path} is {kinds.get(stat.S_IFMT(mode), 'a device')} and no file; evertrain makes none"
    )


def _is_link(path: str, link: str = "") -> CheckpointError:
    return CheckpointError(f"{path} is reached by the link {link or path}; evertrain makes none")
