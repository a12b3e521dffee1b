"""The files of a folder that ranks report together."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from train_core.errors import WorkloadError
from train_core.storage.records.names import check_reported_name


def files_in(folder: Path) -> list[str]:
    """The paths of all files in the folder, as names in a checkpoint, in their order.

    Raises WorkloadError if there is no such folder, or a name that not every storage can have.
    """
    if not folder.is_dir():
        raise WorkloadError(f"{folder} was reported as a checkpoint, and is no folder")
    found = []
    for above, inner, names in os.walk(folder, onerror=_raise, followlinks=True):
        for name in inner:
            if Path(above).resolve().is_relative_to(Path(above, name).resolve()):
                raise WorkloadError(f"{folder} cannot be a checkpoint: {name} leads back into it")
        for name in names:
            path = Path(above, name).relative_to(folder).as_posix()
            try:
                found.append(check_reported_name(path))
            except ValueError as error:
                raise WorkloadError(f"{folder} cannot be a checkpoint: {error}") from error
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def assign_files(files: Sequence[Sequence[str] | None]) -> tuple[list[list[str]], set[str]]:
    """Which files each rank stores, and which of them other ranks have as well.

    `files` are those of each rank; None if it reported no folder. A name that several ranks have
    is stored by the first of them.
    """
    taken: set[str] = set()
    collisions: set[str] = set()
    assigned = []
    for of_rank in files:
        mine = [name for name in of_rank or () if name not in taken]
        collisions |= set(of_rank or ()) - set(mine)
        taken |= set(mine)
        assigned.append(mine)
    return assigned, collisions


def map_file(path: Path) -> memoryview:
    """The bytes of a file, without a copy in memory."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
