"""Moving a large object in parts, each hashed while it is warm in the cache."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from train_core.storage.objects.digests import new_digest

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
    num_bytes, digest = 0, new_digest()
    for part, count in _fetched_parts(fetch, data, left_s):
        num_bytes += count
        digest.update(part)
    return data, digest.hexdigest() if num_bytes == size_bytes else ""


def _fetched_parts(
    fetch: Callable[..., Any], into: memoryview, left_s: float
) -> Iterator[tuple[memoryview, int]]:
    """Fill `into` part by part, some of which are fetched ahead; raises TimeoutError.

    Gives each part with the number of bytes that came for it. The last request asks for one byte
    beyond the expected end, so that an object that is too long is noticed. A part that comes short
    ends the transfer: the rest is not requested of a storage that told a wrong size.
    """
    end = time.monotonic() + left_s

    def fetch_part(start: int) -> int:
        stop = min(start + PART_BYTES, len(into))
        try:
            found = fetch(start=start, end=stop + 1 if stop == len(into) else stop)
        except EOFError:
            return 0
        # Here: what was fetched is given back at once, for the next part to be fetched into. What
        # comes too late is written where nobody looks: `into` is used if every part came in time.
        part = into[start : start + len(found)]
        np.frombuffer(part, np.uint8)[:] = np.frombuffer(found, np.uint8)[: len(part)]
        return len(found)

    starts = range(0, max(len(into), 1), PART_BYTES)
    threads = ThreadPoolExecutor(NUM_CONNECTIONS, "read")
    try:
        fetched = deque(threads.submit(fetch_part, s) for s in starts[:NUM_CONNECTIONS])
        for number, start in enumerate(starts, NUM_CONNECTIONS):
            count = fetched.popleft().result(max(end - time.monotonic(), 0))
            if number < len(starts):
                fetched.append(threads.submit(fetch_part, starts[number]))
            yield into[start : start + count], count
            if count < min(PART_BYTES, len(into) - start):
                return
    finally:
        # What is under way ends by the client's own limits.
        threads.shutdown(wait=False, cancel_futures=True)
