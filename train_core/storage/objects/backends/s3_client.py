"""The client for large objects on S3: obstore, which moves bytes outside of Python's lock.

It has the address and the credentials of s3fs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fsspec.asyn import sync

from train_core.storage.objects.reads_in_parts import PART_BYTES
from train_core.storage.objects.retry_policy import RetryPolicy
from train_core.transient_errors import STATUSES_THAT_PASS

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

_BEYOND_THE_END = 416
_AWS = re.compile(r"https://s3\.([a-z0-9-]+\.)?amazonaws\.com(\.cn)?")


def bucket_of(fs: Any, path: str, retry_policy: RetryPolicy) -> tuple[S3Store, str]:
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
            "connect_timeout": timedelta(seconds=retry_policy.connect_timeout_s),
            # It cannot look at silence: a part may take what the slowest connection needs for it.
            "timeout": timedelta(seconds=retry_policy.part_timeout_s(PART_BYTES)),
        },
        # What fails for longer is repeated as a whole, with the pauses of the retry policy.
        retry_config={
            "max_retries": retry_policy.part_attempts - 1,
            "retry_timeout": timedelta(seconds=retry_policy.budget_s),
            "backoff": {
                "init_backoff": timedelta(seconds=retry_policy.part_first_pause_s),
                "max_backoff": timedelta(seconds=retry_policy.part_longest_pause_s),
                "base": 2,
            },
        },
        credential_provider=credentials,
    )


@contextmanager
def builtin_errors() -> Iterator[None]:
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
