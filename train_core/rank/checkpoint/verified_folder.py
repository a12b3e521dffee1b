"""A reported folder on this node: verified, and downloaded once for all processes that want it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from train_core.errors import StorageError
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.records.names import REPORTED_FOLDER
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.verification.checkpoints import check_files, copy_files

_DONE = "verified"


def verified_folder(folder: RunFolder, checkpoint: Commit, cache: Path) -> Path:
    """The folder that was reported, on a disk of this node; nobody may change what is in it.

    Of all processes of an attempt on this node, which have one cache, one verifies it, and
    downloads it where the storage is not this node's disk; the others wait. Raises CheckpointError
    if a file is missing or altered.
    """
    place = cache / checkpoint.digest
    with _locked(place.with_suffix(".lock")):
        store, key = folder.store, f"{checkpoint.key}/{REPORTED_FOLDER}"
        found = Path(store.path(key)) if store.is_local else place / REPORTED_FOLDER
        if not (place / _DONE).exists():
            files = checkpoint.manifest.files
            if store.is_local:
                check_files(store, checkpoint.key, files)
            else:
                shutil.rmtree(place, ignore_errors=True)
                copy_files(store, checkpoint.key, files, place)
            # A folder without a file is one that no storage has.
            found.mkdir(parents=True, exist_ok=True)
            place.mkdir(parents=True, exist_ok=True)
            (place / _DONE).touch()
    return found


def cache_of(folder: RunFolder, attempt: int) -> Path:
    """Where an attempt at the run keeps what it has verified and downloaded on this node.

    What earlier attempts have left there is deleted.
    """
    of_user = Path(tempfile.gettempdir(), f"evertrain-{os.getuid()}")
    of_user.mkdir(mode=0o700, exist_ok=True)
    if of_user.is_symlink() or of_user.stat().st_uid != os.getuid():
        raise StorageError(f"{of_user} belongs to another user: delete it, or set TMPDIR")
    of_run = of_user / digest_of(folder.url.encode())[:16]
    for other in of_run.glob("*"):
        if other.name.isdigit() and int(other.name) < attempt:
            shutil.rmtree(other, ignore_errors=True)
    return of_run / str(attempt)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        # Given back with the file, also by a process that is killed.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
