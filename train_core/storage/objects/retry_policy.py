"""How long storage is waited for: errors that pass by themselves are tried again in a budget.

`retried` repeats a whole operation, with exponential pauses and jitter. The retries of s3fs and of
botocore are off. They would multiply with ours: a read from a silent server took half an hour. And
botocore draws its pauses from the random numbers that a training has seeded. (It still does before
it asks for credentials again, and so do the clients of other storages.) So a copy or an upload of a
file begins anew where a part of it fails; obstore, which moves a checkpoint's large files, repeats
a part by itself.

For a slow storage these numbers matter, too: `train_core/timing.py` (takeover, mailbox, commits,
requests to stop, jobs, reports of training functions, MLflow),
`config/checkpoint_options.py` (`grace_s`, `max_unsaved_s`, `hang_timeout_s`),
`rank/distributed/rendezvous.py` (collectives), `reads_in_parts.py` and
`backends/s3_client.py` (parts and connections).
"""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeVar

from train_core.errors import CheckpointError, ConfigError, StorageError
from train_core.transient_errors import was_lost

# A folder in an object's place is no object, as it is on an object store.
_NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Of the system's: a training seeds the common generator in every rank and step, and its model may
# draw from it while a thread waits here.
_CHANCE = random.SystemRandom()
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetryPolicy:
    """How long storage is waited for: every time of an operation, in seconds."""

    # An operation with all its tries.
    budget_s: float = 60.0
    """For all tries of an operation together; a transfer gets more, by `slowest_bytes_per_s`."""
    slowest_bytes_per_s: float = 2**20
    """The slowest speed of a transfer: it gets the budget, and its size divided by this."""
    first_pause_s: float = 0.5
    """Before the second try, at most; each further pause is twice as long."""
    longest_pause_s: float = 10.0
    """Where the pauses grow no more."""

    # A connection.
    connect_s: float = 5.0
    """For a connection to be there."""
    silence_s: float = 10.0
    """A connection on which nothing moves for so long is given up."""

    # A part of a large object on S3, which is tried again by itself.
    part_attempts: int = 5
    """How many times a part is tried; after that the whole object is tried again."""
    part_first_pause_s: float = 0.1
    """Before the second try of a part."""
    part_longest_pause_s: float = 1.0
    """Where the pauses of a part grow no more."""

    # What is no single operation.
    probe_budget_s: float = 10.0
    """For each operation of `Store.probe`: a wrong address is an error before any compute."""
    abandoned_s: float = 10.0
    """A temporary file on a disk that has not changed for so long has lost its process."""

    def for_bytes(self, size_bytes: int) -> float:
        """The budget in seconds of an operation that moves so many bytes."""
        return self.budget_s + size_bytes / self.slowest_bytes_per_s

    def part_timeout_s(self, size_bytes: int) -> float:
        """The limit of one try of a part: a silence, and the slowest transfer of so many bytes."""
        return self.silence_s + size_bytes / self.slowest_bytes_per_s

    @property
    def connect_timeout_s(self) -> float:
        """For a connection to be there, where silence is given up sooner."""
        return min(self.connect_s, self.silence_s)

    @property
    def waits_long(self) -> bool:
        """Whether callers have no fallback: those of a short budget do something else then."""
        return self.budget_s >= DEFAULT.budget_s


DEFAULT = RetryPolicy()
SHORT = RetryPolicy(budget_s=5.0, silence_s=5.0)
"""For what is soon done anew, and for processes that are about to end."""


class UnfinishedError(StorageError):
    """Storage answered that all is well, but did a part only."""


def retried(
    operation: Callable[[float], _T],
    title: str,
    retry_policy: RetryPolicy = DEFAULT,
    *,
    size_bytes: int = 0,
) -> _T:
    """What `operation` returns; asked again while its errors may pass, within the budget.

    The operation moves `size_bytes`, and is given the seconds that are left. Raises StorageError,
    beginning with `title` and naming the cause and the time tried, when the budget is spent; errors
    that do not pass at once and as they are.
    """
    begin, budget_s = time.monotonic(), retry_policy.for_bytes(size_bytes)
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
        longest_s = retry_policy.longest_pause_s
        limit_s = min(longest_s, retry_policy.first_pause_s * 2 ** (attempt - 1))
        pause_s = _CHANCE.uniform(limit_s / 2, limit_s)
        tried_s = time.monotonic() - begin
        if tried_s + pause_s >= budget_s:
            tried = f"given up after {tried_s:.0f} s, in attempt {attempt}"
            raise StorageError(f"{title}: {_described(cause)} ({tried})") from cause
        if attempt == 1:
            level = logging.WARNING if retry_policy.waits_long else logging.DEBUG
            _log.log(level, "%s: %s; retrying for %.0f s", title, _described(cause), budget_s)
        time.sleep(pause_s)
    raise AssertionError("count() never ends")


@contextmanager
def storage_errors(action: str, uri: str, *, writing: bool = False) -> Iterator[None]:
    """Raise what went wrong as one of the errors that Store promises, naming the object."""
    try:
        yield
    except (FileExistsError, StorageError, CheckpointError, ConfigError):
        raise
    except Exception as error:
        if not writing and isinstance(error, _NOT_THERE):
            raise FileNotFoundError(f"{uri} does not exist") from error
        if isinstance(error, FileNotFoundError):
            missing = error.filename or "its bucket"
            raise StorageError(f"cannot {action} {uri}: {missing} does not exist") from error
        raise StorageError(f"cannot {action} {uri}: {type(error).__name__}: {error}") from error


def may_pass(error: BaseException) -> bool:
    """Whether the same operation may succeed in a moment."""
    return isinstance(error, UnfinishedError) or was_lost(error)


def s3_config(retry_policy: RetryPolicy) -> dict[str, Any]:
    """Settings with which botocore waits so long, and does not repeat a request."""
    return {
        "connect_timeout": retry_policy.connect_timeout_s,
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
    message = str(error) or "no answer in time" * isinstance(error, TimeoutError)
    return f"{type(error).__name__}: {message}"
