"""The folder that a rank reports: where it is read, and what becomes of it afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs
import ray
from ray.train import Checkpoint

from train_core.functions.reports.reported_files import FolderInRun, LocalFolder
from train_core.functions.task import OpenFolder
from train_core.storage.records.names import is_of_function
from train_core.storage.run_writer import RunWriter

Upload = Callable[[Checkpoint, str], Checkpoint]
"""A `checkpoint_upload_fn`: the checkpoint and a name, and where it has put it."""


@dataclass(frozen=True)
class RunPlaces:
    """Where a run lies, as a worker sees it."""

    writer: RunWriter
    filesystem: pyarrow.fs.FileSystem
    """Ray's storage."""
    path: str
    """The run folder on it."""
    cache: Path
    """What the attempt has downloaded on this node."""


class FolderSource:
    """One reported folder.

    `is_moved`: the function wrote it into the run folder for Ray to take over, as with NO_UPLOAD.
    `is_deleted`: it is a local one that the function needs no more.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        places: RunPlaces,
        *,
        upload: Upload | None,
        name: str,
        is_moved: bool,
        is_deleted: bool,
    ) -> None:
        self._reported = checkpoint
        self._stored = checkpoint
        """Where it is read: elsewhere, if the function uploads it by itself."""
        self._places = places
        self._upload = upload
        self._name = name
        self._is_moved = is_moved or upload is not None
        self._is_deleted = is_deleted

    @contextmanager
    def opened(self) -> Iterator[OpenFolder]:
        """The folder, as long as the block runs; on a disk of this node, or in the run folder."""
        if self._upload:
            self._stored = self._upload(self._reported, self._name)
        if not isinstance(self._stored, Checkpoint):
            raise TypeError(
                f"checkpoint_upload_fn returned {self._stored!r}, and not a ray.train.Checkpoint"
            )
        folder = self._places.writer.folder
        if (key := self._key_in_run()) and not folder.store.is_local:
            yield FolderInRun(folder, key)
            return
        with self._stored.as_directory() as local:
            yield LocalFolder(Path(local))

    def place(self) -> str:
        """Where it lies: all ranks may have written into one folder of the storage, or of a node.

        Once it is opened: a `checkpoint_upload_fn` has put it there.
        """
        filesystem, path = self._stored.filesystem, self._stored.path
        assert filesystem is not None, "a checkpoint finds its own"
        if filesystem == self._places.filesystem and path.startswith(f"{self._places.path}/"):
            return path
        is_local = isinstance(filesystem, pyarrow.fs.LocalFileSystem)
        node = ray.get_runtime_context().get_node_id() if is_local else filesystem.type_name
        return f"{node}:{path}"

    def clean_up(self) -> None:
        """Delete what is superfluous now that a checkpoint has the files."""
        is_local = isinstance(self._reported.filesystem, pyarrow.fs.LocalFileSystem)
        if self._is_deleted and is_local:
            self._delete_local(Path(self._reported.path).resolve())
        if (key := self._key_in_run()) and is_of_function(key):
            self._places.writer.delete_moved(key)

    def _key_in_run(self) -> str | None:
        """The key in the run folder of what is moved from there; None for what lies elsewhere."""
        if not self._is_moved or self._stored.filesystem != self._places.filesystem:
            return None
        key = os.path.relpath(self._stored.path, self._places.path)
        return None if key.split("/")[0] in (".", "..") else key

    def _delete_local(self, folder: Path) -> None:
        """Delete a folder of the function's own; never the run, the cache or a part of them."""
        for kept in (Path(self._places.writer.folder.url), self._places.cache):
            place = kept.resolve()
            if folder.is_relative_to(place) or place.is_relative_to(folder):
                return
        shutil.rmtree(folder, ignore_errors=True)
