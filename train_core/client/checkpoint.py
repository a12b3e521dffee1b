"""A checkpoint to look at: its step and metrics, and its verified files in a local folder."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn

from train_core.entry_points import ADDRESS_OF_RAY_CHECKPOINT, RAY_CHECKPOINT
from train_core.errors import CheckpointError, ConfigError, StorageError
from train_core.storage.addresses import absolute, named, run_at
from train_core.storage.coordination import pins
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import parse_json
from train_core.storage.records.manifest import CheckpointManifest, committed_bytes, read_manifest
from train_core.storage.records.names import (
    CHECKPOINTS,
    MANIFEST_JSON,
    REPORTED_FOLDER,
    CheckpointName,
)
from train_core.storage.records.verified_files import read_file
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.verification.checkpoints import check_files, copy_files

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from ray.train import Checkpoint as RayCheckpoint

_METADATA_FILE = ".metadata.json"
"""Where Ray keeps the metadata of a checkpoint in its folder."""
_log = logging.getLogger(__name__)


class Checkpoint:
    """A committed checkpoint, of a run or copied out of one; in the spirit of Ray Train's.

    It refers to files, which are read and verified by `as_directory` and `to_directory`. Of a
    workload's checkpoint these are the state's files and manifest.json; of one that a training
    function reported, the folder that it reported.

    >>> from train_core import open_run
    >>> with open_run("s3://bucket/runs/digits").best().as_directory() as path:  # doctest: +SKIP
    ...     weights = safetensors.torch.load_file(path / "model.safetensors")
    """

    def __init__(self, store: Store, key: str, committed: Commit, *, is_in_run: bool) -> None:
        self._store = store
        self._key = key
        self.committed = committed
        """Its manifest, and the manifest's digest."""
        self._is_in_run = is_in_run
        """Whether `store` is the folder of its run, which may delete it."""

    @classmethod
    def in_run(cls, folder: RunFolder, committed: Commit) -> Checkpoint:
        """A checkpoint of a run."""
        return cls(folder.store, committed.key, committed, is_in_run=True)

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint whose folder is at a path or an fsspec URL.

        It may be one of a run (its `uri`), or any copy of such a folder: what `to_directory` wrote,
        or `aws s3 cp --recursive`. A copy may have any name, as its manifest.json says what it is.
        Raises ConfigError if no checkpoint is there, or the run does not use it any more, and
        CheckpointError if its manifest is damaged.
        """
        url = _without_reported_folder(absolute(os.fspath(path)).rstrip("/"))
        above, _, last = url.rpartition("/")
        name, of_run = CheckpointName.parse(last), above.removesuffix(f"/{CHECKPOINTS}")
        folder = run_at(of_run) if name and of_run != above else None
        if name and folder:
            return cls.in_run(folder, named(folder, name))
        return cls._alone(url)

    @classmethod
    def from_ray(cls, checkpoint: RayCheckpoint) -> Checkpoint:
        """The checkpoint to whose folder a `ray.train.Checkpoint` refers. Raises as above."""
        return cls.from_directory(resolve_name(ADDRESS_OF_RAY_CHECKPOINT)(checkpoint))

    @classmethod
    def _alone(cls, url: str) -> Checkpoint:
        store, key = _store_and_key(url)
        try:
            found = read_manifest(store, CheckpointManifest, f"{key}/{MANIFEST_JSON}")
        except FileNotFoundError as error:
            raise ConfigError(
                f"{url} is not the folder of a checkpoint: it has no {MANIFEST_JSON}. Give "
                "<run>/checkpoints/<checkpoint>, or a whole copy of that folder"
            ) from error
        return cls(store, key, Commit(*found), is_in_run=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @property
    def name(self) -> str:
        """Its name in its run, as `step-00001200-a0007`."""
        return str(self.committed.name)

    @property
    def uri(self) -> str:
        """The path or URL of its folder, which `from_directory` opens."""
        return self._store.uri(self._key)

    @property
    def step(self) -> int:
        """The optimizer steps done; of one that a training function reported, its reports."""
        return self.committed.step

    @property
    def epoch(self) -> int:
        """The epochs completed."""
        return self.committed.manifest.epoch

    @property
    def metrics(self) -> dict[str, float | None]:
        """The newest value of each; validation metrics only if they are of its very step.

        A whole number or a truth value that a training function reported is one.
        """
        reported = dict(_flat(self.committed.reported_metrics))
        return {
            name: found if isinstance(found := reported.get(name), int) else value
            for name, value in self.committed.metrics.items()
        }

    @contextmanager
    def as_directory(self) -> Iterator[Path]:
        """Its verified files in a local folder, for as long as the block runs; only to be read.

        On a disk they are verified where they lie; from other storage they are downloaded to a
        temporary folder. Meanwhile no retention rule deletes the checkpoint. Raises CheckpointError
        if a file is missing or is not what was committed.
        """
        with ExitStack() as stack:
            self._pin(stack)
            found = Path(self._store.path(self._files_key))
            if self._store.is_local and found.is_dir():
                check_files(self._store, self._key, self.committed.manifest.files)
            else:
                place = tempfile.TemporaryDirectory(prefix="evertrain-")
                found = Path(stack.enter_context(place), self.name)
                self._copy_to(found)
            yield found

    def to_directory(self, path: str | os.PathLike[str]) -> Path:
        """Write its verified files into the local folder `path`; the folder.

        It appears whole or not at all. Raises ConfigError if something is there already, and
        CheckpointError as `as_directory` does.
        """
        target = _new_folder(os.fspath(path))
        with ExitStack() as stack:
            self._pin(stack)
            beside = tempfile.TemporaryDirectory(prefix=".evertrain-", dir=target.parent)
            copied = Path(stack.enter_context(beside), self.name)
            self._copy_to(copied)
            copied.rename(target)
        return target

    @property
    def path(self) -> str:
        """The path of its folder on `filesystem`, as a `ray.train.Checkpoint` has it."""
        return self.to_ray().path

    @property
    def filesystem(self) -> FileSystem:
        """The filesystem of pyarrow on which its folder is, as a `ray.train.Checkpoint` has it."""
        return self.to_ray().filesystem

    def get_metadata(self) -> dict[str, Any]:
        """What a training function has set with `set_metadata` before it reported the folder.

        Raises CheckpointError if it is missing or altered.
        """
        named = f"{REPORTED_FOLDER}/{_METADATA_FILE}"
        for entry in self.committed.manifest.files:
            if self._is_reported and entry.name == named:
                key = f"{self._key}/{named}"
                data = read_file(self._store, key, entry)
                return dict(parse_json(data, f"{self._store.uri(key)}: no metadata"))
        return {}

    def set_metadata(self, metadata: Mapping[str, Any]) -> NoReturn:
        """Raise ConfigError: metadata is one of the files that were committed."""
        raise ConfigError(
            f"the metadata of {self.uri} cannot be set, as the checkpoint is committed: a training "
            "function calls set_metadata on a ray.train.Checkpoint before it reports that"
        )

    update_metadata = set_metadata

    def to_ray(self) -> RayCheckpoint:
        """The same folder as a `ray.train.Checkpoint`, which reads it unverified and unpinned."""
        made: RayCheckpoint = resolve_name(RAY_CHECKPOINT)(self._store, self._files_key)
        return made

    @property
    def _files_key(self) -> str:
        """The folder that a reader gets."""
        return f"{self._key}/{REPORTED_FOLDER}" if self._is_reported else self._key

    @property
    def _is_reported(self) -> bool:
        return self.committed.manifest.reported is not None

    def _pin(self, stack: ExitStack) -> None:
        """Keep retention from deleting it until the stack ends."""
        if not self._is_in_run:
            return
        try:
            stack.enter_context(pins.pinned(self._store, [self.committed.name], "read"))
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{error}: its run has deleted it. `open_run(…).checkpoints` has those that there "
                "are"
            ) from error
        except StorageError as error:
            # Somebody may be allowed to read and not to write.
            _log.warning(
                "%s is read without a pin, so its run may delete it meanwhile: %s", self.uri, error
            )

    def _copy_to(self, target: Path) -> None:
        """Write the verified files. Raises CheckpointError if one is missing or altered."""
        files = self.committed.manifest.files
        without = f"{REPORTED_FOLDER}/" if self._is_reported else ""
        copy_files(self._store, self._key, files, target, without=without)
        if not self._is_reported:
            (target / MANIFEST_JSON).write_bytes(self._manifest())

    def _manifest(self) -> bytes:
        """The manifest's bytes, which are those that were committed."""
        return committed_bytes(self._store, f"{self._key}/{MANIFEST_JSON}", self.committed.digest)


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values by name; those of a nested dict are called `outer/inner`."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _without_reported_folder(url: str) -> str:
    """The address of the checkpoint, if `url` is that of the folder that it was reported with."""
    above, _, last = url.rpartition("/")
    is_reported = last == REPORTED_FOLDER and Store(above).exists(MANIFEST_JSON)
    return above if is_reported else url


def _store_and_key(url: str) -> tuple[Store, str]:
    """The folder that the one at `url` is in, and its key there."""
    above, _, key = url.rpartition("/")
    store = Store(above or "/")
    if not store.is_local:
        return store, key
    # The folder itself may be a link; what is in it may not be reached by one.
    real = Path(store.path(key)).resolve()
    return Store(str(real.parent)), real.name


def _new_folder(path: str) -> Path:
    """The folder, to be written to this machine's disk. Raises ConfigError if it has content."""
    if "://" in path:
        raise ConfigError(f"{path!r} is a URL: give the path of a folder of this machine")
    target = Path(absolute(path)).resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(
            f"{target} is there already: give the path of an empty folder, or of none"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
