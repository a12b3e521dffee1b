"""How long storage is waited for: errors that pass by themselves are tried again in a budget.

`retried` repeats a whole operation, with exponential pauses and jitter. The retries of s3fs and of
botocore are off: they would multiply with ours (a read of a silent server took half an hour), and
botocore's pauses are drawn from the numbers that a training has seeded (as those are that it makes
before it asks for credentials again, and those of other storages' clients). So a copy or an upload
of a file begins anew where a part of it fails; obstore, which moves a checkpoint's large files,
repeats a part by itself.
"""

from __future__ import annotations

import logging
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeVar

from train_core.errors import StorageError

RETRY_BUDGET_S = 60.0
SILENCE_S = 10.0
# What a transfer may take on top of the budget: slower than this counts as failing.
SLOWEST_BYTES_PER_S = 2**20

CONNECT_S = 5.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
STATUSES_THAT_PASS = frozenset({408, 429, 500, 502, 503, 504})
_CODES_THAT_PASS = frozenset(
    {
        # Bytes that were lost or altered on the way.
        *("BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"),
        *("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"),
        # Another request on the same object is under way.
        *("ConditionalRequestConflict", "OperationAborted"),
        # A multipart upload whose completion was answered, and the answer lost: it is done anew.
        "NoSuchUpload",
    }
)
# A folder in an object's place is no object, as it is on an object store.
_NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Of the system's: a training seeds the common generator in every rank and step, and its model may
# draw from it while a thread waits here.
_CHANCE = random.SystemRandom()
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetryPolicy:
    """How long storage is waited for, in seconds."""

    budget_s: float = RETRY_BUDGET_S
    """What an operation may take with all its attempts; a transfer has a second more per MiB."""
    silence_s: float = SILENCE_S
    """A connection on which nothing moves for so long is given up."""

    def for_bytes(self, size_bytes: int) -> float:
        """The budget in seconds of an operation that moves so many bytes."""
        return self.budget_s + size_bytes / SLOWEST_BYTES_PER_S


SHORT = RetryPolicy(budget_s=5.0, silence_s=5.0)
"""For what is soon done anew, and for processes that are about to end."""


class UnfinishedError(StorageError):
    """Storage answered that all is well, but did a part only."""


def retried(operation: Callable[[float], _T], title: str, budget_s: float) -> _T:
    """What `operation` returns; asked again while its errors may pass, within the budget.

    The operation is given the seconds that are left. Raises StorageError, beginning with `title`
    and naming the cause and the time tried, when the budget is spent; errors that do not pass at
    once and as they are.
    """
    begin = time.monotonic()
    cause: Exception | None = None
    for attempt in count(1):
        left_s = begin + budget_s - time.monotonic()
        try:
            return operation(max(left_s, 0.1))
        except Exception as error:
            if not may_pass(error):
                raise
            # A deadline in the middle of a later attempt says less than what failed before it.
            cause = cause if cause and isinstance(error, TimeoutError) else error
        limit_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (attempt - 1))
        pause_s = _CHANCE.uniform(limit_s / 2, limit_s)
        tried_s = time.monotonic() - begin
        if tried_s + pause_s >= budget_s:
            tried = f"given up after {tried_s:.0f} s, in attempt {attempt}"
            raise StorageError(f"{title}: {_described(cause)} ({tried})") from cause
        if attempt == 1:
            # Callers with a short budget have a fallback.
            level = logging.WARNING if budget_s >= RETRY_BUDGET_S else logging.DEBUG
            _log.log(level, "%s: %s; retrying for %.0f s", title, _described(cause), budget_s)
        time.sleep(pause_s)
    raise AssertionError("count() never ends")


@contextmanager
def storage_errors(action: str, uri: str, *, writing: bool = False) -> Iterator[None]:
    """Raise what went wrong as one of the errors that Store promises, naming the object."""
    try:
        yield
    except (FileExistsError, StorageError):
        raise
    except Exception as error:
        if not writing and isinstance(error, _NOT_THERE):
            raise FileNotFoundError(f"{uri} does not exist") from error
        if isinstance(error, FileNotFoundError):
            missing = error.filename or "its bucket"
            raise StorageError(f"cannot {action} {uri}: {missing} does not exist") from error
        raise StorageError(f"cannot {action} {uri}: {type(error).__name__}: {error}") from error


def may_pass(error: BaseException) -> bool:
    """Whether the same operation may succeed in a moment: the network, or a server in trouble."""
    # s3fs turns the server's answer into an OSError and keeps it as the cause.
    answer = getattr(error.__cause__, "response", None)
    if isinstance(answer, dict):
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        code = answer.get("Error", {}).get("Code")
        return status in STATUSES_THAT_PASS or code in _CODES_THAT_PASS
    if isinstance(error, (ConnectionError, TimeoutError, UnfinishedError)):
        return True
    # Nobody meets an error of what is not loaded, and a local disk need not wait for loading it.
    return "botocore" in sys.modules and _was_lost_on_the_way(error)


def _was_lost_on_the_way(error: BaseException) -> bool:
    from aiohttp import ClientError as BrokenAnswer
    from botocore import exceptions as boto

    lost = (
        *(BrokenAnswer, boto.HTTPClientError, boto.ConnectionError),
        *(boto.IncompleteReadError, boto.ChecksumError, boto.FlexibleChecksumError),
    )
    return isinstance(error, lost) and not isinstance(error, boto.SSLError)


def s3_config(retry_policy: RetryPolicy) -> dict[str, Any]:
    """Settings with which botocore waits so long, and does not repeat a request."""
    return {
        "connect_timeout": min(CONNECT_S, retry_policy.silence_s),
        "read_timeout": retry_policy.silence_s,
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connector_args": {"socket_factory": partial(_socket, retry_policy.silence_s)},
    }


def _socket(silence_s: float, address: tuple[Any, ...]) -> socket.socket:
    """A socket that gives up when what it sends is not taken; read_timeout begins after that."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))
    return made


def _described(error: Exception) -> str:
    said = str(error) or "no answer in time" * isinstance(error, TimeoutError)
    return f"{type(error).__name__}: {said}"
