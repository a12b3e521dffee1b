"""The run folder as Ray Train is shown it: one fresh experiment an attempt.

Ray keeps a folder for each experiment, writes a snapshot of its bookkeeping there, reads it
again when an experiment of that name is started, and accepts only checkpoints that lie in it.
evertrain's checkpoints belong to the run, not to an attempt. This view shows `checkpoints/` of
the run inside every attempt's folder, and puts what Ray writes for itself under `ray/`.
"""

from __future__ import annotations

import posixpath
from typing import Any

from fsspec.implementations.dirfs import DirFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

from train_core.storage.names import CHECKPOINTS, RAY
from train_core.storage.store import Store


class RunView(DirFileSystem):  # type: ignore[misc]  # fsspec has no annotations
    """The run folder's files, as `/<attempt>/…`."""

    protocol = "evertrain-run"

    def _join(self, path: Any) -> Any:
        if not isinstance(path, str):
            return super()._join(path)
        attempt, _, rest = path.strip("/").partition("/")
        is_ours = rest == CHECKPOINTS or rest.startswith(f"{CHECKPOINTS}/")
        inside = rest if is_ours else posixpath.join(RAY, attempt, rest)
        return posixpath.join(self.path, inside).rstrip("/")


def ray_filesystem(store: Store) -> PyFileSystem:
    """The view as a pyarrow filesystem, for `ray.train.RunConfig(storage_filesystem=…)`."""
    return PyFileSystem(FSSpecHandler(RunView(store.path(""), store.fs)))
