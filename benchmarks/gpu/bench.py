"""What both sections share: the device, the folders, the report, and how much time is left."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

from benchmarks.checkpoint.ranks import serve
from benchmarks.report import Report

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Bench:
    """One run of the benchmark."""

    scratch: Path
    report: Report
    device: torch.device
    is_quick: bool
    storage: str = ""
    """The folder below which checkpoints are written; empty: in memory, if there is room."""
    data: str = ""
    """The folder of MNIST's IDX files."""
    batch_size: int = 128
    """Images of a step."""
    data_workers: int | None = None
    """Processes that fetch evertrain's batches, if not as many as the tuned loop has."""
    contenders: Sequence[str] = ()
    """The letters of those whose images/s are measured; none: all."""
    limit_s: float = 520.0
    """No further round begins when it would end later, counted from the start of the program."""
    begin: float = field(default_factory=time.perf_counter)
    _to_delete: list[Path] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether it measures a GPU."""
        return self.device.type == "cuda"

    def has_time(self, seconds: float) -> bool:
        """Whether what takes so long ends before the limit."""
        return time.perf_counter() + seconds < self.begin + self.limit_s

    def storage_folder(self, size_bytes: int) -> Path:
        """An empty folder for checkpoints, where so many bytes have room."""
        parent = Path(self.storage) if self.storage else SHARED_MEMORY
        if not self.storage and (
            not parent.is_dir() or shutil.disk_usage(parent).free < size_bytes
        ):
            parent = self.scratch
        folder = Path(tempfile.mkdtemp(prefix="evertrain-bench-", dir=parent))
        self._to_delete.append(folder)
        return folder

    def close(self) -> None:
        """Delete everything."""
        for folder in (*self._to_delete, self.scratch):
            shutil.rmtree(folder, ignore_errors=True)


class Contender(Protocol):
    """What trains in a process of its own; its other methods are the commands that it takes."""

    def close(self) -> None:
        """End what it has started."""


def serve_contender(start: Callable[..., Contender]) -> None:
    """Start a contender as this program's argument says, and carry out its commands."""
    told = json.loads(sys.argv[1])
    contender = start(**told["task"])

    def do(command: str, **arguments: Any) -> Any:
        return getattr(contender, command)(**arguments)

    try:
        serve(told["port"], 0, do)
    finally:
        contender.close()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def description(device: torch.device) -> list[str]:
    """The machine and the versions of what decides the numbers, a line each."""
    cores = len(os.sched_getaffinity(0))
    memory_gib = psutil.virtual_memory().total / 2**30
    machine = f"{platform.processor() or platform.machine()}, {cores} cores, {memory_gib:.0f} GiB"
    lines = [f"{machine}, Python {platform.python_version()}, torch {torch.__version__}"]
    if device.type == "cuda":
        of_device = torch.cuda.get_device_properties(device)
        lines.append(
            f"{of_device.name}, {of_device.total_memory / 2**30:.0f} GiB, driver {_driver()},"
            f" CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
        )
    return lines


def _driver() -> str:
    """The version of NVIDIA's driver, if its tool is there."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (shown.stdout.splitlines() or ["unknown"])[0]
