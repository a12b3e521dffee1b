"""Blocks whose ranks note when each step was done, and by which process."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import torch.distributed as dist
from torch import nn

from benchmarks.checkpoint.workload import Blocks, BlocksSettings


class NotedSettings(BlocksSettings):
    """Where to note it."""

    notes: str = ""


class Noted(Blocks):
    """Every rank notes its steps, its pid and the threads that it has."""

    Settings = NotedSettings
    settings: NotedSettings

    def after_step(self, model: nn.Module, step: int) -> None:
        """Note the step."""
        note_step(Path(self.settings.notes), dist.get_rank(), step)


def note_step(folder: Path, rank: int, step: int) -> None:
    """Note that this process, as that rank, has done a step."""
    with (folder / f"steps-{rank}").open("a") as file:
        file.write(f"{step} {time.time()} {os.getpid()}\n")
    threads = {thread.name: thread.native_id for thread in threading.enumerate()}
    mark = folder / f"rank-{rank}-{os.getpid()}.json"
    if not mark.exists():
        mark.write_text(json.dumps({"pid": os.getpid(), "threads": threads}))
        mark.replace(folder / f"rank-{rank}.json")
        mark.touch()
