"""How fast one core hashes what lies in memory, by the digests that could name a file."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable

from blake3 import blake3

from benchmarks.checkpoint.bench import Bench

SIZE_MB = 70


def measure(bench: Bench) -> None:
    """BLAKE3, which evertrain takes, and SHA-256, by turns; the ratio of their rates."""
    size_mb, rounds = (1, 2) if bench.is_quick else (SIZE_MB, 15)
    data = os.urandom(size_mb * 10**6)
    digests: dict[str, Callable[[bytes], object]] = {"BLAKE3": blake3, "SHA-256": hashlib.sha256}
    for number in range(rounds + 1):
        for name, digest in digests.items():
            begin = time.perf_counter()
            digest(data)
            seconds = time.perf_counter() - begin
            # In the first round the memory and the code come into the caches.
            if number:
                bench.report.add(f"digest: {name}, GB/s", len(data) / 1e9 / seconds)
    blake, sha = (bench.report.median(f"digest: {name}, GB/s") for name in digests)
    bench.report.figure("blake3_vs_sha256", blake / sha)
