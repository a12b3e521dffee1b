"""S3 and its like: small objects by s3fs, large ones by obstore."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import fsspec
from fsspec.asyn import sync

from train_core.storage.objects import unfinished_uploads
from train_core.storage.objects.backends.fsspec_backend import Backend
from train_core.storage.objects.backends.s3_client import bucket_of, builtin_errors
from train_core.storage.objects.digest_algorithm import new_digest
from train_core.storage.objects.reads_in_parts import (
    NUM_CONNECTIONS,
    PART_BYTES,
    hashed_parts,
    load_in_parts,
    pass_on_in_parts,
)
from train_core.storage.objects.regular_files import check_size
from train_core.storage.objects.retry_policy import s3_config

PROTOCOLS = ("s3", "s3a")


class S3Backend(Backend):
    """An S3 server."""

    def _filesystem(self, protocol: str) -> fsspec.AbstractFileSystem:
        settings = {"config_kwargs": s3_config(self.retry_policy)}
        found = fsspec.filesystem(protocol, use_listings_cache=False, **settings)
        found.retries = 1
        return found

    def below(self, left_s: float, folder: str) -> Iterator[dict[str, Any]]:
        """What the server tells of each object below the folder, which may be itself."""
        yield from self.ask(left_s, "find", folder, detail=True).values()

    def read(
        self, left_s: float, path: str, root: str | None, max_bytes: int | None = None
    ) -> bytes:
        """The object's bytes, at most `max_bytes`: one request, where s3fs alone asks for the size.

        It requests one byte more, so that an object that is too large is noticed.
        """
        if max_bytes is None:
            return super().read(left_s, path, root)
        try:
            data = self.piece(left_s, path, root, 0, max_bytes + 1)
        except OSError as error:
            # No range of an empty object can be requested.
            if error.errno != errno.EINVAL:
                raise
            return b""
        check_size(f"{self.fs.unstrip_protocol(path)}", len(data), max_bytes)
        return data

    def in_folders(self, left_s: float, folder: str) -> dict[str, set[str]]:
        """The names in each folder directly below, by the folder's name: one listing."""
        found: dict[str, set[str]] = {}
        for path in self.ask(left_s, "find", folder):
            name, _, below = path.removeprefix(folder).lstrip("/").partition("/")
            if below:
                found.setdefault(name, set()).add(below.partition("/")[0])
        return found

    def load(
        self, left_s: float, path: str, root: str | None, size_bytes: int
    ) -> tuple[memoryview, str]:
        """The object's bytes, and their digest, within the client's own limits of time."""
        return load_in_parts(self._fetcher(path), size_bytes, left_s)

    def pass_on(
        self,
        left_s: float,
        path: str,
        root: str | None,
        size_bytes: int,
        write: Callable[[memoryview], object],
    ) -> str:
        """Give `write` the object's bytes, within the client's own limits of time; their digest."""
        return pass_on_in_parts(self._fetcher(path), size_bytes, left_s, write)

    def create(self, left_s: float, path: str, data: bytes) -> None:
        """Write a small object that must not exist yet; every commit and lease stands on it.

        s3fs sends `If-None-Match: *`, so the server refuses it where there is an object. Whether
        that is our own, after a lost answer, is for `Store.create` to find out.
        """
        self.ask(left_s, "pipe_file", path, data, mode="create")

    def put(self, left_s: float, path: str, data: memoryview) -> str:
        """Store the bytes, from where they lie; their digest.

        Raises TimeoutError when `left_s` seconds are over, other errors as builtin ones.
        """
        import obstore

        bucket, name = bucket_of(self.fs, path, self.retry_policy)
        digest = new_digest()
        pieces: Any = data
        if len(data) > PART_BYTES:
            pieces = hashed_parts(data, digest.update)
        else:
            # In one request: pieces would be a multipart upload of three.
            digest.update(data)
        send = partial(obstore.put_async, bucket, name, pieces, chunk_size=PART_BYTES)
        with builtin_errors():
            self._within(left_s, partial(send, max_concurrency=NUM_CONNECTIONS))
        return digest.hexdigest()

    def unfinished_uploads(self, left_s: float, root: str) -> list[unfinished_uploads.Upload]:
        """Uploads below `root` that are under way, or whose process was killed."""
        return list(unfinished_uploads.unfinished(partial(self.ask, left_s), root))

    def abort(self, left_s: float, path: str, upload_id: str) -> None:
        """Delete the parts of an unfinished upload; fine if it is gone."""
        unfinished_uploads.abort(partial(self.ask, left_s), path, upload_id)

    def _fetcher(self, path: str) -> Callable[..., Any]:
        """What fetches a range of the object."""
        import obstore

        bucket, name = bucket_of(self.fs, path, self.retry_policy)

        def fetch(**where: int) -> Any:
            with builtin_errors():
                return obstore.get_range(bucket, name, **where)

        return fetch

    def _within(self, left_s: float, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What is answered in time; else what is under way is ended, and TimeoutError raised."""

        async def answer() -> Any:
            # Called in the loop: obstore's futures belong to the one that runs.
            return await ask()

        return sync(self.fs.loop, answer, timeout=left_s)
