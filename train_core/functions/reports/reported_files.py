"""The files of a folder that ranks report together."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from train_core.errors import WorkloadError
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import check_reported_name
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter


@dataclass(frozen=True)
class LocalFolder:
    """A reported folder on a disk of this node."""

    path: Path

    def names(self) -> list[str]:
        """The paths of all files in the folder, as names in a checkpoint, in their order.

        Raises WorkloadError if there is no such folder, or a name that not every storage can have.
        """
        if not self.path.is_dir():
            raise WorkloadError(f"{self.path} was reported as a checkpoint, and is no folder")
        found = []
        for above, inner, names in os.walk(self.path, onerror=_raise, followlinks=True):
            for name in inner:
                if Path(above).resolve().is_relative_to(Path(above, name).resolve()):
                    raise WorkloadError(
                        f"{self.path} cannot be a checkpoint: {name} leads back into it"
                    )
            found += [Path(above, name).relative_to(self.path).as_posix() for name in names]
        return _checked(found, str(self.path))

    def store(self, writer: RunWriter, name: str, key: str) -> FileEntry:
        """Store one of its files, hashed on the way."""
        return writer.store_file(key, map_file(self.path / name))


@dataclass(frozen=True)
class FolderInRun:
    """A folder that the function wrote into the run folder, on a storage that is no disk."""

    folder: RunFolder
    key: str

    def names(self) -> list[str]:
        """The paths of all files in the folder, as `LocalFolder.names`."""
        uri = self.folder.store.uri(self.key)
        found = self.folder.store.sizes(self.key)
        if not found:
            raise WorkloadError(f"{uri} was reported as a checkpoint, and there is no file in it")
        return _checked(found, uri)

    def store(self, writer: RunWriter, name: str, key: str) -> FileEntry:
        """Copy one of its files on the storage's side; it is read once, for its digest."""
        return writer.store_copy(f"{self.key}/{name}", key)


def _checked(names: Iterable[str], place: str) -> list[str]:
    try:
        return sorted(map(check_reported_name, names))
    except ValueError as error:
        raise WorkloadError(f"{place} cannot be a checkpoint: {error}") from error


def _raise(error: OSError) -> None:
    raise error


def assign_files(
    files: Sequence[Sequence[str] | None], places: Sequence[str]
) -> tuple[list[list[str]], set[str]]:
    """Which files each rank stores, and which names stand for another file on another rank.

    `files` are those of each rank, and `places` where their folders are; None if a rank reported
    no folder. A name that several ranks have is stored by the first of them.
    """
    taken: dict[str, str] = {}
    collisions: set[str] = set()
    assigned = []
    for of_rank, place in zip(files, places, strict=True):
        assigned.append([name for name in of_rank or () if name not in taken])
        for name in of_rank or ():
            if taken.setdefault(name, place) != place:
                collisions.add(name)
    return assigned, collisions


def map_file(path: Path) -> memoryview:
    """The bytes of a file, without a copy in memory."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
