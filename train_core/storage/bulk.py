"""Moving large objects: hashed on the way, in parallel parts, without a second copy.

`put` takes the bytes from where they lie in memory, `fill` puts them where they shall lie; both
give their SHA-256. On S3 the parts travel through obstore, which moves them outside of Python's
lock, with the address and the credentials of s3fs; every other storage is spoken to through
fsspec. `Store.put` and `Store.fill` are what others call.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from fsspec.asyn import sync

from train_core.storage import local_disk

if TYPE_CHECKING:
    import fsspec
    from obstore.store import S3Credential, S3Store

_CHUNK_BYTES = 4 * 2**20
_PART_BYTES = 8 * 2**20
_NUM_CONNECTIONS = 16
# A part that fails is repeated by obstore for so long; after that the whole object is.
_PART_BUDGET_S = 20
_LOCAL, _S3 = ("file", "local"), ("s3", "s3a")


def put(fs: fsspec.AbstractFileSystem, path: str, data: memoryview, silence_s: float) -> str:
    """Store the bytes as a new object, durable when this returns; their SHA-256."""
    sha = hashlib.sha256()
    if fs.protocol[0] in _LOCAL:
        _write_local(path, _hashed(data, _CHUNK_BYTES, sha.update))
    elif fs.protocol[0] in _S3:
        import obstore

        bucket, name = _bucket(fs, path, silence_s)
        pieces = _hashed(data, _PART_BYTES, sha.update)
        with _builtin_errors():
            obstore.put(
                bucket, name, pieces, chunk_size=_PART_BYTES, max_concurrency=_NUM_CONNECTIONS
            )
    else:
        sha.update(data)
        fs.pipe_file(path, bytes(data))
    return sha.hexdigest()


def fill(fs: fsspec.AbstractFileSystem, path: str, into: memoryview, silence_s: float) -> str:
    """Fill `into` with the object's first bytes; the SHA-256 of all that it has of them."""
    sha = hashlib.sha256()
    if fs.protocol[0] in _LOCAL:
        parts = _local_parts(path, into)
    elif fs.protocol[0] in _S3:
        import obstore

        bucket, name = _bucket(fs, path, silence_s)
        parts = _remote_parts(partial(obstore.get_range, bucket, name), into)
    else:
        parts = _remote_parts(partial(fs.cat_file, path), into)
    with _builtin_errors():
        for part in parts:
            sha.update(part)
    return sha.hexdigest()


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
    local_disk.make_folder(folder)
    with open(path, "xb", buffering=0) as file:
        for piece in pieces:
            written = 0
            while written < len(piece):
                written += file.write(piece[written:])
        os.fsync(file.fileno())
    local_disk.sync(folder)


def _local_parts(path: str, into: memoryview) -> Iterator[memoryview]:
    with open(path, "rb", buffering=0) as file:
        end = 0
        while end < len(into):
            begin, end = end, end + file.readinto(into[end : end + _CHUNK_BYTES])
            if begin == end:
                return
            yield into[begin:end]


def _remote_parts(fetch: Callable[..., Any], into: memoryview) -> Iterator[memoryview]:
    def fetch_part(start: int) -> memoryview:
        part = into[start : start + _PART_BYTES]
        # By numpy, which copies outside of Python's lock.
        np.frombuffer(part, np.uint8)[:] = np.frombuffer(
            fetch(start=start, end=start + len(part)), np.uint8
        )
        return part

    with ThreadPoolExecutor(_NUM_CONNECTIONS, "read") as threads:
        yield from threads.map(fetch_part, range(0, len(into), _PART_BYTES))


@contextmanager
def _builtin_errors() -> Iterator[None]:
    """Raise obstore's errors as what they mean to others."""
    try:
        yield
    except Exception as error:
        # By name: who uses no object store need not load its client.
        kind = {
            "NotFoundError": FileNotFoundError,
            "PermissionDeniedError": PermissionError,
            "UnauthenticatedError": PermissionError,
            "GenericError": ConnectionError,
        }.get(type(error).__name__)
        if kind is None or not type(error).__module__.startswith("obstore"):
            raise
        raise kind(str(error)) from error


def _bucket(fs: Any, path: str, silence_s: float) -> tuple[S3Store, str]:
    """The object's bucket as obstore knows it, and its name in there."""
    fs.connect()
    bucket, _, name = path.partition("/")
    return _connect(fs, fs.s3.meta.endpoint_url, fs.s3.meta.region_name, bucket, silence_s), name


@lru_cache(maxsize=8)
def _connect(fs: Any, endpoint: str, region: str, bucket: str, silence_s: float) -> S3Store:
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
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=silence_s),
            "timeout": timedelta(seconds=_PART_BUDGET_S),
        },
        retry_config={"retry_timeout": timedelta(seconds=_PART_BUDGET_S)},
        credential_provider=credentials,
    )
