"""One rank of a real process group: trains a run, and dies where it is told to."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # The first optimizer loads it: once in the server, not in each rank.
import torch.distributed as dist

from tests.rank.digests import digest_of_training
from train_core.config import TrainConfig
from train_core.datasets.protocols import Columns, Dataset, fetch
from train_core.policy.samples.steps import MicroBatch
from train_core.rank.checkpoint.snapshot import Snapshot
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.rendezvous import Membership
from train_core.rank.distributed.stop_requests import PostedByDriver
from train_core.rank.loop import Trainer
from train_core.storage.objects.retry_policy import RetryPolicy
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import CheckpointManifest
from train_core.storage.records.names import MANIFEST_JSON, CheckpointName
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter
from train_core.workload import Batch


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Stand still, with all threads, until somebody sends SIGCONT."""
    # To this very thread: another one would take it a moment later, while this one went on.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class Fault:
    """What this rank does to itself at a scheduled point of a step: it dies, or stands still.

    Before that it waits until the checkpoint of step `after` is committed, if one is named: another
    rank commits it behind the loop's back, and the test would race with that.
    """

    def __init__(self, point: str = "", step: int = -1, after: int = 0) -> None:
        self._point, self._step, self._after = point, step, after

    def is_at(self, point: str, step: int) -> bool:
        return (point, step) == (self._point, self._step)

    def meet(self, folder: RunFolder, point: str, step: int) -> None:
        if not self.is_at(point, step):
            return
        while self._after and not any(c.manifest.step == self._after for c in folder.checkpoints()):
            time.sleep(0.01)
        stop() if point.startswith("stop_") else die()


class MortalStore(Store):
    """`in_file`: half of a checkpoint's file is there; `between_files`: one file is.

    `stuck_in_file`: the storage takes none of it, and does not say so; `slow_in_file`: it takes a
    while, less than a rank has to leave an attempt.
    `stop_in_delete`: all that has to be looked at before a checkpoint is deleted was.
    """

    folder: MortalFolder

    def delete(self, key: str) -> None:
        folder, _, file = key.rpartition("/")
        name = CheckpointName.parse(folder.rpartition("/")[2])
        if name and file == MANIFEST_JSON:
            self.folder.meet("stop_in_delete", name.step)
        super().delete(key)

    def put(self, key: str, data: memoryview) -> str:
        name = CheckpointName.parse(key.split("/")[1])
        assert name, f"{key} is no file of a checkpoint"
        if self.folder.fault.is_at("slow_in_file", name.step):
            time.sleep(0.8)
        while self.folder.fault.is_at("stuck_in_file", name.step):
            time.sleep(60)
        if self.folder.fault.is_at("in_file", name.step):
            super().put(key, data[: len(data) // 2])
        self.folder.meet("in_file", name.step)
        digest = super().put(key, data)
        self.folder.meet("between_files", name.step)
        return digest


class MortalFolder(RunFolder):
    """Its store and its writer meet the fault."""

    def __init__(self, storage: str, name: str, fault: Fault, patience: RetryPolicy) -> None:
        super().__init__(storage, name)
        self.fault = fault
        store = MortalStore(storage, patience).child(name)
        store.folder = self
        self.store = store

    def meet(self, point: str, step: int) -> None:
        self.fault.meet(self, point, step)


class MortalWriter(RunWriter):
    """`before_manifest`: all of a checkpoint is there but that; `after_manifest`: that, too.

    `slow_before_manifest`: the commit takes a while, less than a rank has to leave an attempt.
    """

    folder: MortalFolder

    def commit(self, manifest: CheckpointManifest) -> Commit:
        if self.folder.fault.is_at("slow_before_manifest", manifest.step):
            time.sleep(0.3)
        self.folder.meet("before_manifest", manifest.step)
        self.folder.meet("stop_before_manifest", manifest.step)
        committed = super().commit(manifest)
        self.folder.meet("after_manifest", manifest.step)
        return committed

    def delete_checkpoint(self, name: CheckpointName) -> None:
        self.folder.meet("stop_before_delete", name.step)
        super().delete_checkpoint(name)


class MortalSnapshot(Snapshot):
    """`in_snapshot`: the weights and the optimizer's tensors are copied, and nothing else is."""

    folder: MortalFolder

    def take(
        self, state: Any, frozen: Collection[str] = (), parameters: Collection[str] = ()
    ) -> None:
        step = state["progress"]["step"]
        if self.folder.fault.is_at("in_snapshot", step):
            first = {part: state[part] for part in ("model", "optimizer")}
            super().take(first, frozen, parameters)
        self.folder.meet("in_snapshot", step)
        super().take(state, frozen, parameters)


class MortalSplit:
    """`in_validation`: one batch of the split was measured, another is wanted."""

    def __init__(self, inner: Dataset, trainer: MortalTrainer) -> None:
        self._inner, self._trainer = inner, trainer
        self._last_step = -1

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int, /) -> Any:
        return self._inner[index]

    def __getitems__(self, indices: Any) -> Columns:
        step = self._trainer.progress.step
        if step == self._last_step:
            self._trainer.meet("in_validation")
        self._last_step = step
        return fetch(self._inner, indices)


class MortalTrainer(Trainer):
    """`before_step`: between two steps; `in_step`: before the last micro-batch of a shard."""

    folder: MortalFolder

    def __init__(self, folder: MortalFolder, *args: Any, **more: Any) -> None:
        super().__init__(folder, *args, **more)
        self._unwrapped = self.loaded
        split = MortalSplit(self.loaded.validation_set, self)
        self.loaded = replace(self.loaded, validation_set=split)
        snapshot = MortalSnapshot(self.config.shards, self.group)
        snapshot.folder = folder
        thread = self.checkpointer._thread
        thread.snapshot = snapshot
        thread.run_writer = MortalWriter(folder, self.attempt)

    def meet(self, point: str) -> None:
        self.folder.meet(point, self.progress.step)

    def step(self) -> None:
        self.meet("before_step")
        self.meet("stop_before_step")
        super().step()

    def keep(self) -> None:
        # The data outlive this trainer, which refers to the sockets of its group.
        self.loaded = self._unwrapped
        super().keep()

    def _forward(self, micro: MicroBatch, batch: Batch) -> torch.Tensor:
        if micro.micro_step == self.config.accumulation_steps - 1:
            self.meet("in_step")
        return super()._forward(micro, batch)


def be_a_process(log: Path) -> None:
    """Be as a program of its own, whose stderr goes to the end of `log`."""
    with log.open("ab") as shown:
        os.dup2(shown.fileno(), sys.stderr.fileno())
    # The processes that fetch data see when this one is killed.
    multiprocessing.set_start_method("fork", force=True)


@contextmanager
def one_of(environment: dict[str, str], log: Path, *, uses_gpu: bool = False) -> Iterator[Group]:
    """Be a rank: with RANK, WORLD_SIZE and the address of a store in a group, else alone."""
    be_a_process(log)
    os.environ.update(environment)
    if uses_gpu:
        torch.cuda.set_device(int(environment.get("RANK", 0)))
    if "RANK" in environment:
        dist.init_process_group("nccl" if uses_gpu else "gloo")
    yield Group.current(uses_gpu=uses_gpu)
    if dist.is_initialized():
        dist.destroy_process_group()


def tell_of_all(found: Any, group: Group, outcome: Path) -> None:
    """Rank 0 writes what each rank has found to `outcome`."""
    of_ranks = group.gather(found)
    if group.is_rank0:
        outcome.write_text(json.dumps(of_ranks))


def main(task: dict[str, Any], environment: dict[str, str], log: Path, outcome: Path) -> None:
    """Be a rank that may die.

    With `driver`, the address of a rendezvous store, in the task, it looks there for a request.
    Rank 0 writes the digest of its training, and the step that it resumed from, to `outcome`.
    """
    faulthandler.enable()
    config = TrainConfig.model_validate(task["config"])
    with one_of(environment, log, uses_gpu=config.uses_gpu) as group:
        _train(task, config, group, outcome)


def _train(task: dict[str, Any], config: TrainConfig, group: Group, outcome: Path) -> None:
    fault = Fault(task.get("point", ""), task.get("step", -1), task.get("after", 0))
    patience = RetryPolicy(**task.get("patience", {}))
    folder = MortalFolder(task["storage"], task["run"], fault, patience)
    source = None
    if "driver" in task:
        driver = Membership(*task["driver"], task["run"], group.rank, group.world_size)
        source = PostedByDriver(driver)
    trainer = MortalTrainer(
        folder, with_monitor(config), task["attempt"], group, stop_source=source
    )
    trainer.run()
    if trainer.group.is_rank0:
        found = {"digest": digest_of_training(folder), "resumed_from": trainer.records.first_step}
        outcome.write_text(json.dumps(found))
