"""One rank of a real training that is told when to train, to save, or to copy its state."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train_core.config import TrainConfig
from train_core.policy.checkpoints.layout import assign
from train_core.policy.checkpoints.save_schedule import SaveRules
from train_core.rank.checkpoint.packing import pack
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.records.manifest import CheckpointManifest
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter

_WORKLOAD = "benchmarks.checkpoint.workload:Blocks"


class TimedWriter(RunWriter):
    """Remembers when each checkpoint was committed, and tells whoever listens."""

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        super().__init__(folder, attempt)
        self.committed: dict[int, float] = {}
        self.on_commit: Callable[[int], object] = self.committed.get

    def commit(self, manifest: CheckpointManifest) -> Commit:
        """As the run writer's."""
        found = super().commit(manifest)
        self.committed[manifest.step] = time.perf_counter()
        self.on_commit(manifest.step)
        return found


def start(task: dict[str, Any]) -> Callable[..., Any]:
    """A rank of the task's training; what carries out its commands."""
    rank = Rank(**task)
    return lambda command, **arguments: getattr(rank, command)(**arguments)


class Rank:
    """A trainer, step by step."""

    def __init__(
        self,
        storage: str,
        settings: dict[str, Any],
        batch_size: int = 4,
        attempt: int = 1,
        every: int = 0,
    ) -> None:
        if "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
            dist.init_process_group("gloo")
        group = Group.current()
        config = TrainConfig(
            workload=_WORKLOAD,
            settings=settings,
            num_shards=group.world_size,
            batch_size=batch_size * group.world_size,
            checkpoint_every_steps=every,
        )
        self.folder = RunFolder(storage, "run")
        self.writer = TimedWriter(self.folder, attempt)
        self.trainer = Trainer(self.folder, with_monitor(config), attempt, group)
        self.trainer.checkpointer._thread.run_writer = self.writer  # noqa: SLF001 (the trainer makes its own)
        self.trainer.restore()
        self.buffers: list[torch.Tensor] = []

    def where(self) -> int:
        """The step that the training stands at."""
        return self.trainer.progress.step

    def turn(self, steps: int, mode: str = "train", every: int = 1, *, sample: bool = False) -> Any:
        """Train so many steps; `save`, `copy` or `share` the state after each `every` of them.

        `save once` saves it before the first of them.
        Each snapshot's or copy's seconds, those of the whole turn, of the commits after their
        snapshots, and the most memory that was used, in bytes, if `sample`.
        """
        blocked, taken = [], {}
        self._save_every({"save": every, "save once": 1}.get(mode, 0))
        copy = self._copy(whole=mode == "copy") if mode in ("copy", "share") else None
        if dist.is_initialized():
            dist.barrier()
        with _peak_memory(wanted=sample) as peak:
            begin = time.perf_counter()
            if mode == "save once" and self._save_if_due():
                taken[self.where()] = time.perf_counter()
                self._save_every(0)
            for index in range(1, steps + 1):
                self.trainer.step()
                before = time.perf_counter()
                if copy is not None and index % every == 0:
                    copy()
                    blocked.append(time.perf_counter() - before)
                elif copy is None and self._save_if_due():
                    taken[self.where()] = time.perf_counter()
                    blocked.append(taken[self.where()] - before)
            seconds = time.perf_counter() - begin
            self.trainer.checkpointer.wait()
        commits = [
            self.writer.committed[step] - moment
            for step, moment in taken.items()
            if step in self.writer.committed
        ]
        return {"blocked": blocked, "seconds": seconds, "commits": commits, "peak": peak[0]}

    def state_bytes(self) -> int:
        """All tensors of the state."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def pin(self, core: int) -> None:
        """Compute on one core only; the threads that this one has started already may roam."""
        os.sched_setaffinity(0, {core})

    def release(self, cores: list[int]) -> None:
        """Compute on these cores."""
        os.sched_setaffinity(0, cores)

    def train_forever(self, log: str) -> None:
        """Train until killed; rank 0 notes each snapshot and each commit, with its time."""
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def note(what: str, step: int) -> None:
            if self.trainer.group.is_rank0:
                os.write(descriptor, f"{what} {step} {time.perf_counter()}\n".encode())

        self.writer.on_commit = lambda step: note("commit", step)
        note("start", self.where())
        while True:
            self.trainer.step()
            if self._save_if_due():
                note("snapshot", self.where())

    def close(self) -> None:
        """End the training's threads."""
        self.trainer.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _save_every(self, steps: int) -> None:
        self.trainer.checkpointer.rules = SaveRules(
            checkpoint_every_epochs=0, checkpoint_every_steps=steps
        )

    def _save_if_due(self) -> bool:
        """Whether the loop took a checkpoint: it notes the time of training with each."""
        before = self.trainer.progress.elapsed_s
        self.trainer.save_if_due()
        return self.trainer.progress.elapsed_s != before

    def _tensors(self) -> list[torch.Tensor]:
        return list(pack(self.trainer.state.capture())[1].values())

    def _copy(self, *, whole: bool) -> Callable[[], None]:
        """What copies the state, or this rank's share of it, into buffers that exist."""
        live = self._tensors()
        group = self.trainer.group
        if not self.buffers:
            self.buffers = [tensor.clone() for tensor in live]
        takers = assign([tensor.nbytes for tensor in live], [0] * group.world_size)
        mine = [i for i, taker in enumerate(takers) if whole or taker == group.rank]
        targets, sources = [self.buffers[i] for i in mine], [live[i] for i in mine]

        def copy() -> None:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)

        return copy


@contextmanager
def _peak_memory(*, wanted: bool) -> Iterator[list[int]]:
    """The most of this process's memory, its part of what it shares included, in bytes."""
    peak = [0]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], _memory_bytes())

    thread = threading.Thread(target=look, daemon=True)
    if wanted:
        thread.start()
    try:
        yield peak
    finally:
        ended.set()
        if wanted:
            thread.join()


def _memory_bytes() -> int:
    """Without files, and without asking with how many a page is shared: that changes by the minute.

    The workers are forked, and others of that family come and go.
    """
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    parts = [line for line in lines if line.startswith(("Anonymous:", "Pss_Shmem:"))]
    return sum(int(line.split()[1]) * 1024 for line in parts)
