"""Checkpoints as Ray Train's: a path on a filesystem of pyarrow; only their use imports Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from train_core.errors import ConfigError
from train_core.storage.objects.store import Store

if TYPE_CHECKING:
    from ray.train import Checkpoint as RayCheckpoint

_PREFIXES = {"local": "", "s3": "s3://", "gcs": "gs://"}
"""What comes before a path in its address, by the type of pyarrow's own filesystem."""


def ray_checkpoint(store: Store, key: str) -> RayCheckpoint:
    """Ray's reference to the folder at `key`, read through the same client as the store."""
    from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem
    from ray.train import Checkpoint as RayCheckpoint

    filesystem = LocalFileSystem() if store.is_local else PyFileSystem(FSSpecHandler(store.fs))
    return RayCheckpoint(store.path(key), filesystem=filesystem)


def address_of(checkpoint: RayCheckpoint) -> str:
    """The path or URL of the folder that Ray refers to.

    Raises ConfigError if its filesystem does not tell where it is.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    filesystem, path = checkpoint.filesystem, checkpoint.path
    if isinstance(filesystem, PyFileSystem) and isinstance(filesystem.handler, FSSpecHandler):
        return str(filesystem.handler.fs.unstrip_protocol(path))
    kind = filesystem.type_name if filesystem else None
    if kind not in _PREFIXES:
        raise ConfigError(
            f"the address of {path!r} on a filesystem of type {kind!r} is not known: open the "
            "folder by its path or URL, with Checkpoint.from_directory"
        )
    return f"{_PREFIXES[kind]}{path}"
