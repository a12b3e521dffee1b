"""Moving a checkpoint's files: hashed on the way, in parallel parts, without a second copy.

`write` takes the bytes from where they lie in memory, `read` puts them where they shall lie. On
S3 the parts travel through obstore, which moves them outside of Python's lock, with the address
and the credentials of the store's own s3fs; every other storage is spoken to through fsspec.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fsspec.asyn import sync

from train_core.errors import CheckpointError
from train_core.storage.manifest import FileEntry
from train_core.storage.store import Store, make_folder, storage_errors, sync_path

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

RETRY_BUDGET_S = 60
"""How long a request that fails by itself (503, reset, timeout) is tried again."""

_CHUNK_BYTES = 4 * 2**20
_PART_BYTES = 8 * 2**20
_NUM_CONNECTIONS = 16


def write(store: Store, key: str, data: memoryview) -> FileEntry:
    """Store the bytes as a new object, durable when this returns, and say what it is.

    Raises StorageError, also if the object exists.
    """
    sha = hashlib.sha256()
    with storage_errors("write", store.uri(key), writing=True):
        if store.is_local:
            _write_local(store.path(key), _hashed(data, _CHUNK_BYTES, sha.update))
        elif store.is_s3:
            import obstore

            bucket, path = _bucket(store, key)
            obstore.put(
                bucket,
                path,
                _hashed(data, _PART_BYTES, sha.update),
                chunk_size=_PART_BYTES,
                max_concurrency=_NUM_CONNECTIONS,
            )
        else:
            sha.update(data)
            store.fs.pipe_file(store.path(key), bytes(data))
    return FileEntry(name=key.rpartition("/")[2], size_bytes=len(data), digest=sha.hexdigest())


def read(store: Store, key: str, entry: FileEntry, into: memoryview) -> None:
    """Fill `into`, `entry.size_bytes` long, with the object's bytes.

    Raises CheckpointError, naming the object, if it is missing or not what was committed.
    """
    assert len(into) == entry.size_bytes
    sha = hashlib.sha256()
    try:
        with storage_errors("read", store.uri(key)):
            # The size first: an object that lies about it is not read into memory.
            if wrong := _wrong_size(store, key, entry):
                raise CheckpointError(f"{store.uri(key)} {wrong}")
            parts = _local_parts if store.is_local else _remote_parts
            for part in parts(store, key, into):
                sha.update(part)
    except FileNotFoundError as error:
        raise CheckpointError(f"{store.uri(key)} is missing") from error
    if sha.hexdigest() != entry.digest:
        raise CheckpointError(f"{store.uri(key)}: its SHA-256 is not the committed one")


def check(store: Store, key: str, entry: FileEntry) -> str:
    """What is wrong with the object, in bounded memory; nothing if it is what was committed."""
    sha = hashlib.sha256()
    try:
        if wrong := _wrong_size(store, key, entry):
            return f"{key} {wrong}"
        for chunk in store.chunks(key):
            sha.update(chunk)
    except FileNotFoundError:
        return f"{key} is missing"
    return "" if sha.hexdigest() == entry.digest else f"{key}: its SHA-256 is another"


def _wrong_size(store: Store, key: str, entry: FileEntry) -> str:
    size = store.size_bytes(key)
    if size == entry.size_bytes:
        return ""
    return f"has {size} bytes, {entry.size_bytes} were committed"


def _hashed(
    data: memoryview, size_bytes: int, update: Callable[[memoryview], None]
) -> Iterator[memoryview]:
    """The bytes in pieces, each hashed while it is warm in the cache."""
    for start in range(0, len(data), size_bytes):
        piece = data[start : start + size_bytes]
        update(piece)
        yield piece


def _write_local(path: str, pieces: Iterable[memoryview]) -> None:
    folder = os.path.dirname(path)
    make_folder(folder)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with open(descriptor, "wb", buffering=0) as file:
        for piece in pieces:
            written = 0
            while written < len(piece):
                written += file.write(piece[written:])
        os.fsync(descriptor)
    sync_path(folder)


def _local_parts(store: Store, key: str, into: memoryview) -> Iterator[memoryview]:
    with open(store.path(key), "rb", buffering=0) as file:
        end = 0
        while end < len(into):
            begin, end = end, end + file.readinto(into[end : end + _CHUNK_BYTES])
            if begin == end:
                return
            yield into[begin:end]


def _remote_parts(store: Store, key: str, into: memoryview) -> Iterator[memoryview]:
    fetch = _fetcher(store, key)

    def fill(start: int) -> memoryview:
        part = into[start : start + _PART_BYTES]
        part[:] = memoryview(fetch(start, start + len(part)))
        return part

    with ThreadPoolExecutor(_NUM_CONNECTIONS, "read") as threads:
        yield from threads.map(fill, range(0, len(into), _PART_BYTES))


def _fetcher(store: Store, key: str) -> Callable[[int, int], Any]:
    """What reads the bytes from `start` to `stop` of the object."""
    if store.is_s3:
        import obstore

        bucket, path = _bucket(store, key)
        return lambda start, stop: obstore.get_range(bucket, path, start=start, end=stop)
    return lambda start, stop: store.fs.cat_file(store.path(key), start=start, end=stop)


def _bucket(store: Store, key: str) -> tuple[S3Store, str]:
    """The object's bucket as obstore knows it, and its name in there."""
    fs = store.fs
    fs.connect()
    bucket, _, path = store.path(key).partition("/")
    return _connect(fs, fs.s3.meta.endpoint_url, fs.s3.meta.region_name, bucket), path


@lru_cache(maxsize=8)
def _connect(fs: Any, endpoint: str, region: str, bucket: str) -> S3Store:
    from obstore.store import S3Store

    async def ask() -> Any:
        return await (await fs.session.get_credentials()).get_frozen_credentials()

    def credentials() -> S3Credential:
        found = sync(fs.loop, ask)
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            # s3fs knows when they end, and renews them: ask it again soon.
            "expires_at": datetime.now(UTC) + timedelta(minutes=10),
        }

    return S3Store(
        bucket,
        endpoint=None if endpoint.endswith(".amazonaws.com") else endpoint,
        region=region,
        client_options={"allow_http": endpoint.startswith("http://")},
        retry_config={"retry_timeout": timedelta(seconds=RETRY_BUDGET_S)},
        credential_provider=credentials,
    )
