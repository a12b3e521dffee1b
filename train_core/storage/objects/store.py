"""A folder on any fsspec storage, with the few operations that evertrain is built from.

Small objects are written whole, by fsspec. `put` is for a checkpoint's large files: on S3 obstore
sends them in parallel parts, on a disk they are written past the system's cache
(`disk_files.write_large`).
`create` writes an object that must not exist yet, in one step that has one winner: it is what every
commit and every lease stands on. `StoreReader` is the half that reads.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from train_core.errors import CheckpointError, StorageError
from train_core.storage.objects.retry_policy import may_pass
from train_core.storage.objects.store_reader import StoreReader
from train_core.storage.objects.unfinished_uploads import Upload

# A condition holds for one small request only: completing a multipart upload ignores it on some
# stores.
_SINGLE_PUT_BYTES = 64 * 2**20


class Store(StoreReader):
    """A folder at `url`, to be read and changed."""

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        """Write or replace the object; readers see the old bytes or the new ones.

        `durable` waits until a local disk has it; an object store always does. This method, like
        all that change something, raises ConfigError if a link on the way to `key` leads out of
        the folder.
        """
        path = self._path_inside(key)

        def once(left_s: float) -> None:
            self._backend.write(left_s, path, data, durable=durable)

        self._run("write", key, once, writing=True, size_bytes=len(data))

    def create(self, key: str, data: bytes) -> None:
        """Write the object if it does not exist: never half, never over another.

        Of any number of callers with different bytes one succeeds; the others get
        FileExistsError. One that finds its own bytes succeeds too: a client whose first answer
        was lost on the way asks again, and must not take itself for another. The object is
        durable when this returns. See `backends/`: a hard link on a disk, `If-None-Match` on S3.
        """
        if len(data) >= _SINGLE_PUT_BYTES:
            raise ValueError(f"{self.uri(key)}: {len(data)} bytes are too many to create")
        path = self._path_inside(key)

        def once(left_s: float) -> None:
            try:
                self._backend.create(left_s, path, data)
            except OSError as error:
                if may_pass(error):
                    raise
                if not (isinstance(error, FileExistsError) or self._backend.exists(left_s, path)):
                    raise
                if not self._has(left_s, path, data):
                    raise FileExistsError(f"{self.uri(key)} exists") from error

        self._run("create", key, once, writing=True, size_bytes=len(data))

    def put(self, key: str, data: memoryview) -> str:
        """Store the bytes, from where they lie, as a new object, in parallel parts; their digest.

        Durable when this returns. On a disk, a reader may see a part of it before: it counts once
        a manifest says so.
        """
        path = self._path_inside(key)

        def once(left_s: float) -> str:
            return self._backend.put(left_s, path, data)

        return self._run("write", key, once, writing=True, size_bytes=len(data))

    def upload(self, local: str | Path, key: str) -> None:
        """Copy a local file into the folder, in parallel parts where the storage has them.

        The copy is whole and durable when this returns; before, readers see what was there.
        """
        path, size_bytes = self._path_inside(key), os.path.getsize(local)

        def once(left_s: float) -> None:
            self._backend.upload(left_s, local, path)

        self._run("upload", key, once, writing=True, size_bytes=size_bytes)

    def copy(self, key: str, target: Store, target_key: str) -> None:
        """Copy the object to another folder of the same storage, on the server's side.

        The copy is whole and durable when this returns; before, readers see what was there.
        """
        self._copy(key, target, target_key, target._backend.copy)

    def link_or_copy(self, key: str, target: Store, target_key: str) -> None:
        """Give the object a second name on a local disk, or copy it where there are no links.

        The two names share their bytes on a disk, and no operation of Store changes bytes in
        place. Durable when this returns; before, readers see what was there.
        """
        self._copy(key, target, target_key, target._backend.link_or_copy)

    def delete(self, key: str) -> None:
        """Delete the object, or the folder with all that is in it; fine if it is gone.

        On a disk a link is deleted, never what it points to.
        """
        path = self._path_inside(key)
        self._run("delete", key, lambda left_s: self._backend.delete(left_s, path))

    def sweep(self) -> None:
        """Delete the temporary files of processes that were killed; only a disk has any."""
        self._backend.sweep(self._root)

    def unfinished_uploads(self) -> list[Upload]:
        """Uploads below the folder that are under way, or whose process was killed: only on S3."""
        return self._run(
            "list", "", lambda left_s: self._backend.unfinished_uploads(left_s, self._root)
        )

    def abort(self, upload: Upload) -> None:
        """Delete the parts of an unfinished upload; fine if it is gone."""
        path = self.path(upload.key)
        self._run("delete", upload.key, lambda left_s: self._backend.abort(left_s, path, upload.id))

    def probe(self) -> None:
        """Check that objects, small and large, can be written, and that `create` has one winner.

        Raises StorageError, naming what failed, within seconds.
        """
        budget_s = min(self.retry_policy.budget_s, self.retry_policy.probe_budget_s)
        store = self.with_retries(replace(self.retry_policy, budget_s=budget_s))
        key = f"probe-{uuid.uuid4().hex}"
        store.create(key, b"1")
        try:
            store.create(key, b"2")
        except FileExistsError:
            pass
        else:
            raise StorageError(
                f"{self.url} creates an object twice: evertrain needs storage with "
                "conditional create (If-None-Match on S3, exclusive create on a disk)"
            )
        finally:
            store.delete(key)
        # Large objects go through a client of their own on S3.
        store.put(key, memoryview(b"1"))
        store.delete(key)

    def _has(self, left_s: float, path: str, data: bytes) -> bool:
        """Whether these are the bytes of the object that is there."""
        try:
            return self._backend.read(left_s, path, self._guard, len(data)) == data
        except CheckpointError:
            # It is longer, or no file.
            return False

    def _path_inside(self, key: str) -> str:
        """The path of an object that is to be changed: it lies where it seems to."""
        path = self.path(key).rstrip("/")
        self._backend.check_inside(path, self._root)
        return path

    def _copy(
        self,
        key: str,
        target: Store,
        target_key: str,
        copy: Callable[[float, str, str | None, str], None],
    ) -> None:
        source, path = self.path(key), target._path_inside(target_key)
        if target.protocol != self.protocol:
            raise ValueError(f"{self.uri(key)} and {target.url} are not on the same storage")
        size_bytes = self.size_bytes(key)

        def once(left_s: float) -> None:
            copy(left_s, source, self._guard, path)

        target._run("copy", target_key, once, writing=True, size_bytes=size_bytes)


class DataStore(Store):
    """A folder of the user's own data, which may be behind links: a training set, weights."""

    follows_links = True
