"""Moving a large object in parts, each hashed while it is warm in the cache."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from train_core.storage.objects.digest_algorithm import new_digest

PART_BYTES = 8 * 2**20
NUM_CONNECTIONS = 16


def hashed_parts(data: memoryview, update: Callable[[memoryview], object]) -> Iterator[memoryview]:
    """The bytes in parts, each hashed while it is warm in the cache."""
    for start in range(0, len(data), PART_BYTES):
        part = data[start : start + PART_BYTES]
        update(part)
        yield part


def load_in_parts(
    fetch: Callable[..., Any], size_bytes: int, left_s: float
) -> tuple[memoryview, str]:
    """The bytes of an object, and their digest, or "" if it has another size.

    `fetch` gives the bytes between its arguments `start` and `end`, and raises EOFError beyond the
    object's end. Raises TimeoutError when `left_s` seconds are over.
    """
    # By numpy, which asks the system for large pages: small ones cost as much as the digest.
    data = np.empty(size_bytes, np.uint8).data

    def keep(start: int, found: Any) -> memoryview:
        # What was fetched is given back at once, for the next part to be fetched into. What comes
        # too late is written where nobody looks: `data` is used if every part came in time.
        part = data[start : start + len(found)]
        np.frombuffer(part, np.uint8)[:] = np.frombuffer(found, np.uint8)[: len(part)]
        return part

    num_bytes, digest = 0, new_digest()
    for part, count in _fetched_parts(fetch, size_bytes, left_s, keep):
        num_bytes += count
        digest.update(part)
    return data, digest.hexdigest() if num_bytes == size_bytes else ""


def pass_on_in_parts(
    fetch: Callable[..., Any],
    size_bytes: int,
    left_s: float,
    write: Callable[[memoryview], object],
) -> str:
    """Give `write` the bytes of an object, part by part, with a few parts in memory; their digest.

    As `load_in_parts`, also in what it raises.
    """
    num_bytes, digest = 0, new_digest()
    parts = _fetched_parts(fetch, size_bytes, left_s, lambda _, found: memoryview(found))
    for part, count in parts:
        num_bytes += count
        digest.update(part)
        write(part)
    return digest.hexdigest() if num_bytes == size_bytes else ""


def _fetched_parts(
    fetch: Callable[..., Any],
    size_bytes: int,
    left_s: float,
    keep: Callable[[int, Any], memoryview],
) -> Iterator[tuple[memoryview, int]]:
    """The parts of an object in their order, some of which are fetched ahead; raises TimeoutError.

    Gives what `keep`, which is called where a part was fetched, makes of its start and its bytes,
    and the number of bytes that came. The last request asks for one byte beyond the expected end,
    so that an object that is too long is noticed. A part that comes short ends the transfer: the
    rest is not requested of a storage that told a wrong size.
    """
    end = time.monotonic() + left_s

    def fetch_part(start: int) -> tuple[memoryview, int]:
        stop = min(start + PART_BYTES, size_bytes)
        try:
            found = fetch(start=start, end=stop + 1 if stop == size_bytes else stop)
        except EOFError:
            return memoryview(b""), 0
        return keep(start, found), len(found)

    starts = range(0, max(size_bytes, 1), PART_BYTES)
    threads = ThreadPoolExecutor(NUM_CONNECTIONS, "read")
    try:
        fetched = deque(threads.submit(fetch_part, s) for s in starts[:NUM_CONNECTIONS])
        for number, start in enumerate(starts, NUM_CONNECTIONS):
            part, count = fetched.popleft().result(max(end - time.monotonic(), 0))
            if number < len(starts):
                fetched.append(threads.submit(fetch_part, starts[number]))
            yield part, count
            if count < min(PART_BYTES, size_bytes - start):
                return
    finally:
        # What is under way ends by the client's own limits.
        threads.shutdown(wait=False, cancel_futures=True)
