"""What checkpoints cost beside their peers and their limits: `make bench-checkpoint`.

Contenders live side by side, each in processes of its own, and take turns. Two cores are used,
however many there are. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.checkpoint import digest, frozen, kill, local, memory, reducer, s3, slowdown, stall
from benchmarks.checkpoint.bench import Bench
from benchmarks.report import Report

SECTIONS = {
    "stall": stall.measure,
    "slowdown": slowdown.measure,
    "kill": kill.measure,
    "memory": memory.measure,
    "s3": s3.measure,
    "digest": digest.measure,
    "restore": local.measure_restore,
    "open": local.measure_open,
    "frozen": frozen.measure,
    "reducer": reducer.measure,
}
KEYS = (
    "stall_vs_copy_p50",
    "stall_vs_copy_p95",
    "stock_vs_ours",
    "ray_async_vs_ours",
    "slowdown_pct",
    "commit_vs_write",
    "steps_lost",
    "memory_vs_state",
    "s3_save_vs_best",
    "s3_restore_vs_best",
    "restore_vs_load_and_digest",
    "open_10000_vs_10",
    "frozen_bytes_ratio",
    "reducer_vs_ring_2",
    "reducer_vs_ring_4",
)
"""The figures that the project promises; null if their section did not run."""


def main() -> None:
    """Measure, print the table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section; repeatable")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    # Short: sockets lie deep below it.
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    report = Report(KEYS)
    bench = Bench(scratch, report, cores, asked.quick)
    begin = time.perf_counter()
    try:
        for name in asked.only or SECTIONS:
            print(f"{name}, after {time.perf_counter() - begin:.0f} s", flush=True)
            SECTIONS[name](bench)
    finally:
        bench.close()
    memory_gib = psutil.virtual_memory().total / 2**30
    print(
        f"\n{platform.processor() or platform.machine()}, {len(cores)} cores, {memory_gib:.0f} GiB,"
        f" {time.perf_counter() - begin:.0f} s"
    )
    print("\n".join(report.lines()))
    print(json.dumps(report.figures))


if __name__ == "__main__":
    main()
