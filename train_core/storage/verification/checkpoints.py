"""Whether a checkpoint still is what was committed, to the last byte."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from train_core.errors import CheckpointError
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import JOURNAL
from train_core.storage.records.verified_files import download_file, fault_of
from train_core.storage.run_folder import Commit, RunFolder


def faults(folder: RunFolder, checkpoint: Commit) -> list[str]:
    """What is wrong with the checkpoint's files and its journal: missing, or other bytes.

    Empty if every byte is what was committed.
    """
    journal = checkpoint.manifest.journal
    return file_faults(folder, checkpoint) + faults_of_files(folder.store, JOURNAL, journal)


def file_faults(folder: RunFolder, checkpoint: Commit) -> list[str]:
    """What is wrong with the checkpoint's files alone: a training that resumes needs no more."""
    return faults_of_files(folder.store, checkpoint.key, checkpoint.manifest.files)


def faults_of_files(store: Store, above: str, files: Iterable[FileEntry]) -> list[str]:
    """What is wrong with the files in the folder at the key `above`."""
    found = (fault_of(store, f"{above}/{file.name}", file) for file in files)
    return [fault for fault in found if fault]


def check_files(store: Store, above: str, files: Iterable[FileEntry]) -> None:
    """Read all files in the folder at the key `above`.

    Raises CheckpointError, which names those that are missing or altered.
    """
    if found := faults_of_files(store, above, files):
        raise CheckpointError(
            f"{store.uri(above)} is not what was committed: {'; '.join(found)}. Take another "
            "checkpoint"
        )


def copy_files(
    store: Store, above: str, files: Iterable[FileEntry], target: Path, *, without: str = ""
) -> None:
    """Write the files, verified, into a local folder, under their names without that beginning.

    Raises CheckpointError if one is missing or altered.
    """
    target.mkdir(parents=True)
    for file in files:
        path = target / file.name.removeprefix(without)
        path.parent.mkdir(parents=True, exist_ok=True)
        download_file(store, f"{above}/{file.name}", file, path)
