"""Stock Ray Train at its defaults: a training function that reports folders and times itself.

The file is a script as Ray Train's documentation writes it. The benchmark of training functions
starts it, and has evertrain run the same function of the same file. Nothing is trained: between
reports there is a pause, or none.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train
from ray.train import Checkpoint, CheckpointUploadMode, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(task: dict[str, Any]) -> None:
    """Report a folder in three ways; each rank notes its seconds in `task["notes"]`."""
    began_at = time.time()
    rank, count = train.get_context().get_world_rank(), task["reports"]
    folder = new_folder(task) if rank == 0 else None
    # The first report makes connections and is not counted.
    timed_report(folder)
    wait_for_disk()
    rested = [timed_report(folder, pause_s=task["pause_s"]) for _ in range(count)]
    wait_for_disk()
    time.sleep(task["pause_s"])
    # The first of a row meets a controller that rests.
    in_a_row = [timed_report(folder) for _ in range(count + 1)][1:]
    # Ray deletes what it has uploaded in the background: each report has a folder of its own.
    folders = [new_folder(task) if rank == 0 else None for _ in range(count)]
    wait_for_disk()
    time.sleep(task["pause_s"])
    begin = time.perf_counter()
    background = [timed_report(one, CheckpointUploadMode.ASYNC) for one in folders]
    train.get_all_reported_checkpoints()
    notes = {
        "began_at": began_at,
        "rested": rested,
        "in_a_row": in_a_row,
        "background": background,
        "background_in_all": time.perf_counter() - begin,
        "stored_bytes": stored_bytes() if rank == 0 else 0,
    }
    Path(task["notes"], f"rank-{rank}.json").write_text(json.dumps(notes))


def timed_report(
    folder: str | None,
    mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    pause_s: float = 0,
) -> float:
    """Report once all ranks have come here. Gives the seconds spent in `report`."""
    time.sleep(pause_s)
    checkpoint = Checkpoint.from_directory(folder) if folder else None
    torch.distributed.barrier()
    begin = time.perf_counter()
    train.report({"loss": 1.0}, checkpoint=checkpoint, checkpoint_upload_mode=mode)
    return time.perf_counter() - begin


def new_folder(task: dict[str, Any]) -> str:
    """A third of the bytes as a model would be saved, the rest as its optimizer's moments."""
    folder = tempfile.mkdtemp(dir=str(task["scratch"]))
    third = torch.rand(int(task["size_mb"] * 1e6 / 4 / 3))
    torch.save({"weight": third}, os.path.join(folder, "model.pt"))
    torch.save({"exp_avg": third, "exp_avg_sq": third + 1}, os.path.join(folder, "optimizer.pt"))
    return folder


def wait_for_disk() -> None:
    """Wait until all that was written is on the disk, and in nobody's way."""
    os.sync()
    torch.distributed.barrier()


def stored_bytes() -> int:
    """The size of the newest checkpoint, as the function gets it back."""
    newest = train.get_checkpoint()
    assert newest is not None
    with newest.as_directory() as folder:
        return sum(path.stat().st_size for path in Path(folder).iterdir())


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    ray.init()
    TorchTrainer(
        train_func,
        train_loop_config=told,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=told["storage"], name="stock"),
    ).fit()
