"""Moving large objects: hashed on the way, in parallel parts, without a second copy.

`put` takes the bytes from where they lie in memory, `fill` puts them where they shall lie; both
give their SHA-256. On S3 the parts travel through obstore, which moves them outside of Python's
lock, with the address and the credentials of s3fs; every other storage is spoken to through
fsspec. `Store.put` and `Store.fill` are what others call.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from fsspec.asyn import sync

from train_core.storage import local_disk
from train_core.storage.patience import (
    CONNECT_S,
    SLOWEST_BYTES_PER_S,
    STATUSES_THAT_PASS,
    Patience,
)

if TYPE_CHECKING:
    import fsspec
    from obstore.store import S3Credential, S3Store

_CHUNK_BYTES = 4 * 2**20
_PART_BYTES = 8 * 2**20
_NUM_CONNECTIONS = 16
# As often obstore asks for a part; after that the whole object is repeated.
_PART_ATTEMPTS = 5
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=0.1), timedelta(seconds=1)
_LOCAL, _S3 = ("file", "local"), ("s3", "s3a")


def put(
    fs: fsspec.AbstractFileSystem, path: str, data: memoryview, patience: Patience, left_s: float
) -> str:
    """Store the bytes as a new object, durable when this returns; their SHA-256.

    Raises TimeoutError on S3 when `left_s` seconds are over, other errors as builtin ones.
    """
    sha = hashlib.sha256()
    if fs.protocol[0] in _LOCAL:
        _write_local(path, _hashed(data, _CHUNK_BYTES, sha.update))
    elif fs.protocol[0] in _S3:
        import obstore

        bucket, name = _bucket(fs, path, patience)
        pieces = _hashed(data, _PART_BYTES, sha.update)
        send = partial(obstore.put_async, bucket, name, pieces, chunk_size=_PART_BYTES)
        with _builtin_errors():
            _within(left_s, fs, partial(send, max_concurrency=_NUM_CONNECTIONS))
    else:
        sha.update(data)
        fs.pipe_file(path, bytes(data))
    return sha.hexdigest()


def fill(
    fs: fsspec.AbstractFileSystem, path: str, into: memoryview, patience: Patience, left_s: float
) -> str:
    """Fill `into` with the object's first bytes; their SHA-256.

    Raises EOFError if it has fewer, TimeoutError on S3 when `left_s` seconds are over, other
    errors as builtin ones.
    """
    sha = hashlib.sha256()
    if fs.protocol[0] in _LOCAL:
        parts = _local_parts(path, into)
    elif fs.protocol[0] in _S3:
        parts = _remote_parts(_s3_range(fs, path, patience, left_s), into)
    else:
        parts = _remote_parts(partial(fs.cat_file, path), into)
    with _builtin_errors():
        for part in parts:
            sha.update(part)
    return sha.hexdigest()


def _s3_range(
    fs: fsspec.AbstractFileSystem, path: str, patience: Patience, left_s: float
) -> Callable[..., Any]:
    """What gives a range of the object's bytes until the time is up."""
    import obstore

    bucket, name = _bucket(fs, path, patience)
    end = time.monotonic() + left_s

    def fetch(**where: int) -> Any:
        left_s = max(end - time.monotonic(), 0.1)
        return _within(left_s, fs, lambda: obstore.get_range_async(bucket, name, **where))

    return fetch


def _within(left_s: float, fs: Any, ask: Callable[[], Awaitable[Any]]) -> Any:
    """What is answered in time; else what is under way is ended, and TimeoutError raised."""

    async def answer() -> Any:
        # Called in the loop: obstore's futures belong to the one that runs.
        return await ask()

    return sync(fs.loop, answer, timeout=left_s)


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
                raise EOFError(f"it ends at byte {end}, {len(into)} were wanted")
            yield into[begin:end]


def _remote_parts(fetch: Callable[..., Any], into: memoryview) -> Iterator[memoryview]:
    def fetch_part(start: int) -> memoryview:
        part = into[start : start + _PART_BYTES]
        found = memoryview(fetch(start=start, end=start + len(part)))
        if len(found) < len(part):
            raise EOFError(f"it ends at byte {start + len(found)}, {len(into)} were wanted")
        # By numpy, which copies outside of Python's lock.
        np.frombuffer(part, np.uint8)[:] = np.frombuffer(found, np.uint8)
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
        if not type(error).__module__.startswith("obstore"):
            raise
        # What follows the first line is for those who debug the client.
        said = str(error).partition("\n")[0]
        raise _meaning(type(error).__name__, said)(said) from error


def _meaning(kind: str, said: str) -> type[OSError]:
    status = re.search(r"status code: (\d{3})", said)
    if "NoSuchUpload" in said:
        # The completion was answered, but not heard: it is done anew.
        return ConnectionError
    if kind == "GenericError" and (status is None or int(status[1]) in STATUSES_THAT_PASS):
        return ConnectionError
    meanings = {
        "NotFoundError": FileNotFoundError,
        "PermissionDeniedError": PermissionError,
        "UnauthenticatedError": PermissionError,
    }
    return meanings.get(kind, OSError)


def _bucket(fs: Any, path: str, patience: Patience) -> tuple[S3Store, str]:
    """The object's bucket as obstore knows it, and its name in there."""
    fs.connect()
    bucket, _, name = path.partition("/")
    return _connect(fs, fs.s3.meta.endpoint_url, fs.s3.meta.region_name, bucket, patience), name


@lru_cache(maxsize=8)
def _connect(fs: Any, endpoint: str, region: str, bucket: str, patience: Patience) -> S3Store:
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
            "connect_timeout": timedelta(seconds=min(CONNECT_S, patience.silence_s)),
            # It cannot look at silence: a part may take what the slowest connection needs for it.
            "timeout": timedelta(seconds=patience.silence_s + _PART_BYTES / SLOWEST_BYTES_PER_S),
        },
        # What fails for longer is repeated as a whole, with the pauses of `patience`.
        retry_config={
            "max_retries": _PART_ATTEMPTS - 1,
            "retry_timeout": timedelta(seconds=patience.budget_s),
            "backoff": {"init_backoff": _FIRST_PAUSE, "max_backoff": _LONGEST_PAUSE, "base": 2},
        },
        credential_provider=credentials,
    )
