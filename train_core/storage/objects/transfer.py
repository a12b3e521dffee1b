"""Moving large objects: hashed on the way, in parallel parts.

`put` takes the bytes from where they lie in memory, `load` gives them in memory; both give their
digest. On S3 the parts travel through obstore, which moves them outside of Python's lock, with the
address and the credentials of s3fs; every other storage is spoken to through fsspec, which wants
to be given `bytes`, a copy. `Store.put` and `Store.load` are what others call.
"""

from __future__ import annotations

import mmap
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from fsspec.asyn import sync

from train_core.storage.objects import local_disk
from train_core.storage.objects.digests import new_digest
from train_core.storage.objects.filesystems import LOCAL, S3
from train_core.storage.objects.retries import (
    CONNECT_S,
    SLOWEST_BYTES_PER_S,
    STATUSES_THAT_PASS,
    RetryPolicy,
)

if TYPE_CHECKING:
    import fsspec
    from obstore.store import S3Credential, S3Store

_CHUNK_BYTES = 2**20
_PART_BYTES = 8 * 2**20
_NUM_CONNECTIONS = 16
# As often obstore asks for a part; after that the whole object is repeated.
_PART_ATTEMPTS = 5
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=0.1), timedelta(seconds=1)
_BEYOND_THE_END = 416
_AWS = re.compile(r"https://s3\.([a-z0-9-]+\.)?amazonaws\.com(\.cn)?")


def put(
    fs: fsspec.AbstractFileSystem,
    path: str,
    data: memoryview,
    retry_policy: RetryPolicy,
    left_s: float,
) -> str:
    """Store the bytes as a new object, durable when this returns; their digest.

    Raises TimeoutError on S3 when `left_s` seconds are over, other errors as builtin ones.
    """
    digest = new_digest()
    if fs.protocol[0] in LOCAL:
        # The disk has its own time: the digest is made in it.
        with ThreadPoolExecutor(1, "write") as thread:
            written = thread.submit(local_disk.write_large, path, data)
            digest.update(data)
            written.result()
    elif fs.protocol[0] in S3:
        import obstore

        bucket, name = _bucket(fs, path, retry_policy)
        pieces: Any = data
        if len(data) > _PART_BYTES:
            pieces = _hashed(data, digest.update)
        else:
            # In one request: pieces would be a multipart upload of three.
            digest.update(data)
        send = partial(obstore.put_async, bucket, name, pieces, chunk_size=_PART_BYTES)
        with _builtin_errors():
            _within(left_s, fs, partial(send, max_concurrency=_NUM_CONNECTIONS))
    else:
        digest.update(data)
        fs.pipe_file(path, bytes(data))
    return digest.hexdigest()


def load(
    fs: fsspec.AbstractFileSystem,
    path: str,
    size_bytes: int,
    retry_policy: RetryPolicy,
    left_s: float,
) -> tuple[memoryview, str]:
    """The object's bytes, which may be changed, and their digest, or "" if it has another size.

    But on a disk, raises TimeoutError when `left_s` seconds are over; other errors as builtin ones.
    """
    if fs.protocol[0] in LOCAL:
        return _map(path, size_bytes)
    # By numpy, which asks the system for large pages: small ones cost as much as the digest.
    data = np.empty(size_bytes, np.uint8).data
    if fs.protocol[0] in S3:
        parts = _remote_parts(_s3_range(fs, path, retry_policy), data, left_s)
    else:
        # What other storages answer to a range beyond the end is not documented.
        if fs.info(path)["size"] != size_bytes:
            return data, ""
        if not size_bytes:
            return data, new_digest().hexdigest()
        parts = _remote_parts(partial(fs.cat_file, path), data, left_s)
    num_bytes, digest = 0, new_digest()
    for part, count in parts:
        num_bytes += count
        digest.update(part)
    return data, digest.hexdigest() if num_bytes == size_bytes else ""


def _s3_range(
    fs: fsspec.AbstractFileSystem, path: str, retry_policy: RetryPolicy
) -> Callable[..., Any]:
    """What gives a range of the object's bytes, within the client's own limits of time."""
    import obstore

    bucket, name = _bucket(fs, path, retry_policy)

    def fetch(**where: int) -> Any:
        with _builtin_errors():
            return obstore.get_range(bucket, name, **where)

    return fetch


def _within(left_s: float, fs: Any, ask: Callable[[], Awaitable[Any]]) -> Any:
    """What is answered in time; else what is under way is ended, and TimeoutError raised."""

    async def answer() -> Any:
        # Called in the loop: obstore's futures belong to the one that runs.
        return await ask()

    return sync(fs.loop, answer, timeout=left_s)


def _hashed(data: memoryview, update: Callable[[memoryview], object]) -> Iterator[memoryview]:
    """The bytes in parts, each hashed while it is warm in the cache."""
    for start in range(0, len(data), _PART_BYTES):
        part = data[start : start + _PART_BYTES]
        update(part)
        yield part


def _map(path: str, size_bytes: int) -> tuple[memoryview, str]:
    """The file as memory that is shared with the disk's cache until it is changed."""
    piece, num_bytes, digest = memoryview(bytearray(_CHUNK_BYTES)), 0, new_digest()
    with open(path, "rb", buffering=0) as file:
        # By reading: what the disk cannot read is an error then, and in a mapping a signal.
        while num_bytes <= size_bytes and (count := file.readinto(piece)):
            digest.update(piece[:count])
            num_bytes += count
        if num_bytes != size_bytes:
            return memoryview(b""), ""
        if not size_bytes:
            return memoryview(bytearray()), digest.hexdigest()
        mapped = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY)
    return memoryview(mapped), digest.hexdigest()


def _remote_parts(
    fetch: Callable[..., Any], into: memoryview, left_s: float
) -> Iterator[tuple[memoryview, int]]:
    """Fill `into` part by part, some of which are fetched ahead; raises TimeoutError.

    Gives each part with the bytes that came for it: one more is asked for than fits. The first
    part that is cut is the last: a storage that lies about a size is not asked for all of it.
    """
    end = time.monotonic() + left_s

    def fetch_part(start: int) -> int:
        stop = min(start + _PART_BYTES, len(into))
        try:
            found = fetch(start=start, end=stop + 1 if stop == len(into) else stop)
        except EOFError:
            return 0
        # Here: what was fetched is given back at once, for the next part to be fetched into. What
        # comes too late is written where nobody looks: `into` is used if every part came in time.
        part = into[start : start + len(found)]
        np.frombuffer(part, np.uint8)[:] = np.frombuffer(found, np.uint8)[: len(part)]
        return len(found)

    starts = range(0, max(len(into), 1), _PART_BYTES)
    threads = ThreadPoolExecutor(_NUM_CONNECTIONS, "read")
    try:
        fetched = deque(threads.submit(fetch_part, s) for s in starts[:_NUM_CONNECTIONS])
        for number, start in enumerate(starts, _NUM_CONNECTIONS):
            count = fetched.popleft().result(max(end - time.monotonic(), 0))
            if number < len(starts):
                fetched.append(threads.submit(fetch_part, starts[number]))
            yield into[start : start + count], count
            if count < min(_PART_BYTES, len(into) - start):
                return
    finally:
        # What is under way ends by the client's own limits.
        threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _builtin_errors() -> Iterator[None]:
    """Raise obstore's errors as what they mean to others."""
    try:
        yield
    except Exception as error:
        # By name: without an object store, its client need not be imported.
        if not type(error).__module__.startswith("obstore"):
            raise
        # What follows the first line is for debugging the client.
        message = str(error).partition("\n")[0]
        raise _meaning(type(error).__name__, message)(message) from error


def _meaning(kind: str, message: str) -> type[OSError | EOFError]:
    status = re.search(r"status code: (\d{3})", message)
    if "NoSuchUpload" in message:
        # The completion was answered, but the answer was lost: it is done anew.
        return ConnectionError
    if kind == "GenericError" and (status is None or int(status[1]) in STATUSES_THAT_PASS):
        return ConnectionError
    if status is not None and int(status[1]) == _BEYOND_THE_END:
        return EOFError
    meanings = {
        "NotFoundError": FileNotFoundError,
        "PermissionDeniedError": PermissionError,
        "UnauthenticatedError": PermissionError,
    }
    return meanings.get(kind, OSError)


def _bucket(fs: Any, path: str, retry_policy: RetryPolicy) -> tuple[S3Store, str]:
    """The object's bucket as obstore knows it, and its name in there."""
    fs.connect()
    bucket, _, name = path.partition("/")
    return _connect(fs, fs.s3.meta.endpoint_url, fs.s3.meta.region_name, bucket, retry_policy), name


@lru_cache(maxsize=8)
def _connect(
    fs: Any, endpoint: str, region: str, bucket: str, retry_policy: RetryPolicy
) -> S3Store:
    from obstore.store import S3Store

    async def ask() -> Any:
        return await (await fs.session.get_credentials()).get_frozen_credentials()

    def credentials() -> S3Credential:
        if fs.key:
            return {
                "access_key_id": fs.key,
                "secret_access_key": fs.secret,
                "token": fs.token,
                "expires_at": None,
            }
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
        endpoint=None if _AWS.fullmatch(endpoint) else endpoint,
        skip_signature=bool(fs.anon),
        # TLS sees to it that the bytes arrive as they were sent; without it, their signature does.
        unsigned_payload=endpoint.startswith("https://"),
        region=region,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=min(CONNECT_S, retry_policy.silence_s)),
            # It cannot look at silence: a part may take what the slowest connection needs for it.
            "timeout": timedelta(
                seconds=retry_policy.silence_s + _PART_BYTES / SLOWEST_BYTES_PER_S
            ),
        },
        # What fails for longer is repeated as a whole, with the pauses of the retry policy.
        retry_config={
            "max_retries": _PART_ATTEMPTS - 1,
            "retry_timeout": timedelta(seconds=retry_policy.budget_s),
            "backoff": {"init_backoff": _FIRST_PAUSE, "max_backoff": _LONGEST_PAUSE, "base": 2},
        },
        credential_provider=credentials,
    )
