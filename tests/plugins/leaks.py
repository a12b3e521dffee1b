"""What a test left behind in the process that runs it."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

# Threads that libraries start once and keep: fsspec's event loop, the executors of asyncio, what
# looks after tqdm's bars, of which torch.compile has some.
_KEPT_THREADS = ("fsspecIO", "asyncio_", "tqdm_monitor")
# Files that libraries keep open: Matplotlib the fonts that it has drawn with.
_KEPT_FILES = (".ttf",)
_CHILDREN = Path("/proc/thread-self/children")
"""A kernel may have no such lists."""


@dataclass(frozen=True)
class Belongings:
    """The threads and child processes of this process, and the paths behind its descriptors."""

    threads: frozenset[threading.Thread]
    children: frozenset[psutil.Process]
    files: frozenset[str]

    @classmethod
    def now(cls) -> Self:
        process = psutil.Process()
        return cls(
            frozenset(t for t in threading.enumerate() if not t.name.startswith(_KEPT_THREADS)),
            frozenset(_children_of(process)),
            frozenset(_open_files()),
        )

    def added(self, *, within_s: float) -> list[str]:
        """What is here now and was not then, once it has had `within_s` to end by itself."""
        deadline = time.monotonic() + within_s
        while True:
            now = Belongings.now()
            found = [
                *(f"thread {thread.name}" for thread in now.threads - self.threads),
                *(f"process {child.pid}" for child in now.children - self.children),
                *(f"file {path}" for path in now.files - self.files if Path(path).is_file()),
            ]
            if not found or time.monotonic() > deadline:
                return found
            # A file that is mapped is open for as long as its memory is there.
            _collect_garbage()
            time.sleep(0.05)


def _open_files() -> Iterator[str]:
    """The path behind each descriptor of this process; psutil asks the kernel more of each file."""
    for descriptor in os.listdir("/proc/self/fd"):
        # It may be closed just now.
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
            if not path.endswith(_KEPT_FILES):
                yield path


def _collect_garbage() -> None:
    """Collect it, and let what was imported since the last time out of the later collections.

    With MLflow, Ray and Prefect imported, one takes 0.3 s, and some tests need one each.
    """
    global _num_modules  # noqa: PLW0603 (of this process, as the garbage is)
    gc.collect()
    if len(sys.modules) > _num_modules:
        _num_modules = len(sys.modules)
        gc.freeze()


_num_modules = 0
"""Imported, when what was there was frozen."""


def _children_of(process: psutil.Process) -> list[psutil.Process]:
    """The child processes and theirs.

    By the kernel's own lists where there are any: psutil reads a file of each process of the
    machine, which takes milliseconds before and after each of thousands of tests.
    """
    found: list[psutil.Process] = []
    if not _CHILDREN.exists():
        found += process.children(recursive=True)
        return found
    for listed in Path(f"/proc/{process.pid}/task").glob("*/children"):
        # A thread or a process may end just now.
        with suppress(OSError, psutil.NoSuchProcess):
            for pid in listed.read_text().split():
                child = psutil.Process(int(pid))
                found += [child, *_children_of(child)]
    return found
