"""What a process had the disk keep for certain, and when: each fsync, and each name given."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Synced:
    """A file with the bytes, or a folder with the names, that it had when it was synced."""

    inode: int
    content: bytes | frozenset[str]


@dataclass(frozen=True)
class Named:
    """A file that was there already got this name."""

    path: str


@dataclass
class Syncs:
    """What happened to a disk, in its order."""

    events: list[Synced | Named] = field(default_factory=list)

    def when_named(self, path: str) -> int:
        """When the file got its name, last: the number of that event; -1 if it was made with it."""
        named = [at for at, event in enumerate(self.events) if event == Named(path)]
        return max(named, default=-1)

    def have_bytes(self, path: str, before: int | None = None) -> bool:
        """Whether the file was synced as it is now, before an event."""
        wanted = Synced(os.stat(path).st_ino, Path(path).read_bytes())
        return wanted in self.events[:before]

    def have_name(self, path: str, before: int | None = None) -> bool:
        """Whether the folder was synced with the file's or the folder's name in it, likewise."""
        above, name = os.path.split(path)
        inode = os.stat(above).st_ino
        return any(
            isinstance(event, Synced)
            and event.inode == inode
            and isinstance(event.content, frozenset)
            and name in event.content
            for event in self.events[self.when_named(path) + 1 : before]
        )

    def missing(self, path: str, below: str, before: int | None = None) -> list[str]:
        """What could be lost of the file and of its folders below one that stands already."""
        lost = [] if self.have_bytes(path, before) else [f"the bytes of {path}"]
        while path != below:
            if not self.have_name(path, before):
                lost.append(f"the name of {path}")
            path = os.path.dirname(path)
        return lost


def recorded(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    """Look on while this process syncs and names files; all is done as ever."""
    syncs = Syncs()
    fsync = os.fsync

    def look(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        content = frozenset(os.listdir(path)) if os.path.isdir(path) else Path(path).read_bytes()
        fsync(descriptor)
        syncs.events.append(Synced(os.fstat(descriptor).st_ino, content))

    monkeypatch.setattr(os, "fsync", look)
    for give_name in (os.link, os.replace):
        monkeypatch.setattr(os, give_name.__name__, _looked_at(give_name, syncs))
    return syncs


def _looked_at(give_name: Callable[[str, str], None], syncs: Syncs) -> Callable[[str, str], None]:
    def give(source: str, path: str) -> None:
        give_name(source, path)
        syncs.events.append(Named(str(path)))

    return give
