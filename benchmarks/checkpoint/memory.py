"""How much memory checkpoints take, over both workers, beside the training's own.

The most that the workers use while they train and save, less the most while they only train; each
process counts its part of what it shares. The files' buffers are in it, and what uploads hold.

What the training alone keeps of freed memory, for the next gradients, moves by a tenth of this
state from turn to turn; so here it goes back to the system when it is freed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from benchmarks.checkpoint import training
from benchmarks.checkpoint.bench import BUCKET, Bench
from benchmarks.checkpoint.ranks import Ranks

STATE_MB = 140
# Of glibc's `mallopt`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def start(task: dict[str, Any]) -> Callable[..., Any]:
    """A rank that gives back what it frees, if it is larger than some pages."""
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(_MMAP_THRESHOLD, 2**16) and libc.mallopt(_TRIM_THRESHOLD, 2**16)):
        raise OSError("glibc's mallopt was refused")
    return training.start(task)


def measure(bench: Bench) -> None:
    """On a disk and on S3; the figure is the larger one."""
    of_disk = extra(bench, "disk", str(bench.fresh()), {})
    bench.report.figure("memory_vs_state_disk", of_disk)
    of_s3 = 0.0
    if bench.s3 is not None:
        of_s3 = extra(bench, "S3", f"s3://{BUCKET}/memory", bench.s3)
        bench.report.figure("memory_vs_state_s3", of_s3)
    bench.report.figure("memory_vs_state", max(of_disk, of_s3))


def extra(bench: Bench, name: str, storage: str, environment: dict[str, str]) -> float:
    """The extra memory over the state."""
    folder = bench.fresh()
    state_mb, count = (5, 2) if bench.is_quick else (STATE_MB, 4)
    task = {"storage": storage, "settings": {"state_mb": state_mb}}
    ranks = Ranks(folder, "memory", 2)
    with ranks.start(start, task, **environment):
        ranks.ask("turn", steps=5)
        state = ranks.ask("state_bytes")
        alone = saving = 0
        for _ in range(count):
            answers = ranks.ask("turn", steps=15, sample=True)
            alone = max(alone, sum(a["peak"] for a in answers))
        for _ in range(count):
            answers = ranks.ask("turn", steps=15, mode="save once", sample=True)
            saving = max(saving, sum(a["peak"] for a in answers))
            bench.report.add(f"memory, {name}: extra MB", (saving - alone) / 1e6)
        ranks.ask("close")
    return (saving - alone) / state[0]
