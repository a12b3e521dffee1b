"""One rank of a real process group: trains a run, and dies where it is told to.

Run as `python -m tests.engine.rank TASK`, TASK being JSON; with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in the environment it joins a gloo group, else it trains alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch
import torch.distributed as dist

from tests.engine.digests import digest_of_training
from train_core.config import TrainConfig
from train_core.engine.group import Group
from train_core.engine.loop import Trainer
from train_core.policy.steps import MicroBatch
from train_core.storage.manifest import CheckpointManifest
from train_core.storage.names import CheckpointName
from train_core.storage.run_folder import RunFolder


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalFolder(RunFolder):
    """Dies at the end of the given step's checkpoint: all is stored but the manifest."""

    dies_before_manifest_of = -1

    def commit(self, name: CheckpointName, manifest: CheckpointManifest) -> None:
        if name.step == self.dies_before_manifest_of:
            die()
        super().commit(name, manifest)


class MortalTrainer(Trainer):
    """Dies at a scheduled point: `before_step`, `in_step` (between micro-batches), `in_validation`
    or `before_manifest`, of the scheduled step."""

    def schedule_death(self, point: str, step: int) -> None:
        self.point, self.death_step = point, step
        if point == "before_manifest":
            assert isinstance(self.folder, MortalFolder)
            self.folder.dies_before_manifest_of = step

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


def main() -> None:
    task = json.loads(sys.argv[1])
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    folder = MortalFolder(task["storage"], task["run"])
    config = TrainConfig.model_validate(task["config"])
    trainer = MortalTrainer(folder, config, task["attempt"], Group.current())
    trainer.schedule_death(task.get("point", ""), task.get("step", -1))
    trainer.run()
    if trainer.group.is_first:
        sys.stdout.write(json.dumps({"digest": digest_of_training(folder)}) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
