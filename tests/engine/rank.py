"""One rank of a real process group: trains a run, and dies where it is told to."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.engine.digests import digest_of_training
from train_core.config import TrainConfig
from train_core.engine.group import Group
from train_core.engine.loop import Trainer
from train_core.policy.steps import MicroBatch
from train_core.storage.manifest import CheckpointManifest
from train_core.storage.names import CheckpointName
from train_core.storage.run_folder import Checkpoint, RunFolder


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Stand still, with all threads, until somebody sends SIGCONT."""
    # To this very thread: another one would take it a moment later, while this one went on.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class MortalFolder(RunFolder):
    """Dies, or stands still, when all of the given step's checkpoint is stored but the manifest."""

    point, step = "", -1

    def commit(self, name: CheckpointName, manifest: CheckpointManifest) -> Checkpoint:
        if name.step == self.step:
            {"before_manifest": die, "stop_before_manifest": stop}.get(self.point, bool)()
        return super().commit(name, manifest)

    def delete_checkpoint(self, name: CheckpointName, *, attempt: int) -> None:
        if self.point == "stop_before_delete" and name.step == self.step:
            stop()
        super().delete_checkpoint(name, attempt=attempt)


class MortalTrainer(Trainer):
    """Dies at a scheduled point: `before_step`, `in_step` (between micro-batches), `in_validation`
    or `before_manifest`, of the scheduled step."""

    def schedule_death(self, point: str, step: int) -> None:
        self.point, self.death_step = point, step
        assert isinstance(self.folder, MortalFolder)
        self.folder.point, self.folder.step = point, step

    def step(self) -> None:
        self._die_at("before_step")
        super().step()

    def _forward(self, micro: MicroBatch) -> torch.Tensor:
        if micro.micro_step == self.config.accumulation_steps - 1:
            self._die_at("in_step")
        return super()._forward(micro)

    def end_epoch(self) -> None:
        self._die_at("in_validation")
        super().end_epoch()

    def _die_at(self, point: str) -> None:
        if point == self.point and self.progress.step == self.death_step:
            # What is under way must be committed, or the test would race with it.
            self.checkpointer.wait()
            die()


def main(task: dict[str, Any], environment: dict[str, str], log: Path, outcome: Path) -> None:
    """Be a rank: with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in a gloo group, else alone.

    Rank 0 writes the digest of its training to `outcome`; stderr goes to the end of `log`.
    """
    with log.open("ab") as shown:
        os.dup2(shown.fileno(), sys.stderr.fileno())
    faulthandler.enable()
    # As in a program of its own: the processes that fetch data see when this one is killed.
    multiprocessing.set_start_method("fork", force=True)
    os.environ.update(environment)
    if "RANK" in environment:
        dist.init_process_group("gloo")
    folder = MortalFolder(task["storage"], task["run"])
    config = TrainConfig.model_validate(task["config"])
    trainer = MortalTrainer(folder, config, task["attempt"], Group.current())
    trainer.schedule_death(task.get("point", ""), task.get("step", -1))
    trainer.run()
    if trainer.group.is_first:
        outcome.write_text(json.dumps({"digest": digest_of_training(folder)}))
    if dist.is_initialized():
        dist.destroy_process_group()
