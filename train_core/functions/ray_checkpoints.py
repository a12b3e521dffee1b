"""A folder of a store as Ray Train's checkpoint: a path on a filesystem of pyarrow; and back."""

from __future__ import annotations

from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem
from ray.train import Checkpoint

from train_core.errors import ConfigError
from train_core.storage.objects.store import Store

_PREFIXES = {"local": "", "s3": "s3://", "gcs": "gs://"}
"""What comes before a path in its address, by the type of pyarrow's own filesystem."""


def filesystem_of(store: Store) -> FileSystem | None:
    """The filesystem of a store as Ray takes it, with the store's client; None: the disk."""
    return None if store.is_local else PyFileSystem(FSSpecHandler(store.fs))


def ray_checkpoint(store: Store, key: str) -> Checkpoint:
    """Ray's reference to the folder at `key`."""
    return Checkpoint(store.path(key), filesystem=filesystem_of(store) or LocalFileSystem())


def address_of(checkpoint: Checkpoint) -> str:
    """The path or URL of the folder that Ray refers to.

    Raises ConfigError if its filesystem does not tell where it is.
    """
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
