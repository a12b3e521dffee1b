"""Blocks whose ranks note when each step was done, and by which process."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from benchmarks.checkpoint.workload import Blocks, BlocksSettings
from train_core import Split


class NotedSettings(BlocksSettings):
    """Where to note it, and how slowly the data are there."""

    notes: str = ""
    dataset_s: float = 0


class Noted(Blocks):
    """Every rank notes its steps, its pid and the threads that it has."""

    Settings = NotedSettings
    settings: NotedSettings

    def dataset(self, split: Split) -> Any:
        """As of blocks; the training split takes its time, as one that is parsed."""
        if split == "train":
            time.sleep(self.settings.dataset_s)
        found = super().dataset(split)
        loaded_mark(Path(self.settings.notes), os.getpid()).touch()
        return found

    def after_step(self, model: nn.Module, step: int) -> None:
        """Note the step."""
        note_step(Path(self.settings.notes), dist.get_rank(), step)


def loaded_mark(folder: Path, pid: int) -> Path:
    """The file that a process leaves which has loaded data."""
    return folder / f"loaded-{pid}"


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
