"""A folder of a run as Ray Train's checkpoint, a path on a filesystem of pyarrow, and back."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import ray
from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem
from ray.train import Checkpoint

from train_core.config import TrainConfig
from train_core.errors import ConfigError, WorkloadError
from train_core.policy.checkpoints.selection import Candidate, ranked
from train_core.storage.objects.store import Store
from train_core.storage.records.names import REPORTED_FOLDER
from train_core.storage.run_folder import Commit, RunFolder

_PREFIXES = {"local": "", "s3": "s3://", "gcs": "gs://"}
"""What comes before a path in its address, by the type of pyarrow's own filesystem."""


def filesystem_of(store: Store) -> FileSystem | None:
    """The filesystem of a store as Ray takes it, with the store's client; None: the disk."""
    return None if store.is_local else PyFileSystem(FSSpecHandler(store.fs))


class CommittedCheckpoint(Checkpoint):
    """Ray's reference to a folder that is committed, so nothing in it may be changed."""

    def set_metadata(self, metadata: dict[str, Any]) -> NoReturn:
        """Raise WorkloadError: its metadata is one of the files that were committed."""
        raise WorkloadError(
            f"the metadata of {self.path} cannot be set, as the checkpoint is committed: call "
            "set_metadata on Checkpoint.from_directory(folder) before it is reported"
        )


def ray_checkpoint(store: Store, key: str) -> Checkpoint:
    """Ray's reference to the folder at `key`."""
    filesystem = filesystem_of(store) or LocalFileSystem()
    return CommittedCheckpoint(store.path(key), filesystem=filesystem)


def ray_snapshot(folder: RunFolder, config: TrainConfig) -> bytes | None:
    """What `ray.train.Result.from_path` reads of a run folder, as Ray Train writes it.

    It has the reported checkpoints of all attempts; None if there are none.
    """
    found = folder.reported()
    if not found:
        return None
    described = {str(one.name): _as_ray_records_it(one) for one in found}
    newest, names = str(found[-1].name), list(described)
    # Ray has the best one last.
    if metric := config.monitor:
        candidates = [Candidate(str(one.name), one.step, one.metrics) for one in found]
        names = [one.name for one in reversed(ranked(candidates, metric, config.order))]
    document = {
        "ray_version": ray.__version__,
        "checkpoint_results": [described[name] for name in names],
        "checkpoint_report_indices": [list(described).index(name) for name in names],
        "latest_checkpoint_result": described[newest],
        "pending_training_results": [],
        "pending_validation_specs": [],
        "current_report_index": len(found),
        "validated_checkpoint_dir_names": [],
        "timed_out_validation_checkpoint_dir_names": [],
        "failed_validation_checkpoint_dir_names": [],
    }
    return json.dumps(document).encode()


def _as_ray_records_it(checkpoint: Commit) -> dict[str, Any]:
    place = f"{checkpoint.key}/{REPORTED_FOLDER}"
    return {"version": 0, "checkpoint_dir_name": place, "metrics": checkpoint.reported_metrics}


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
