"""One rank that says what it saved and what it read, and whose storage is slow if it is told so."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, ClassVar

from tests.ranks.rank import one_of, tell_of_all
from tests.waiting import wait_for
from train_core.config import TrainConfig
from train_core.policy.checkpoints.save_schedule import SaveDue
from train_core.rank.checkpoint.checkpointer import Checkpointer
from train_core.rank.checkpoint.progress import Progress
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder


class WatchedStore(Store):
    """Notes each time that an object is read; where it is slow, it stores no file before rank 0
    waits for it.
    """

    was_read: ClassVar[list[str]] = []
    go_on: ClassVar[Path]
    is_slow: ClassVar[bool] = False

    def load(self, key: str, size_bytes: int) -> tuple[memoryview, str]:
        self.was_read.append(key)
        return super().load(key, size_bytes)

    def read(self, key: str, max_bytes: int | None = None) -> bytes:
        self.was_read.append(key)
        return super().read(key, max_bytes)

    def chunks(self, key: str, size_bytes: int = 16 * 2**20) -> Iterator[bytes]:
        self.was_read.append(key)
        return super().chunks(key, size_bytes)

    def put(self, key: str, data: memoryview) -> str:
        if self.is_slow:
            wait_for(self.go_on.exists, 60, every_s=0.01)
        return super().put(key, data)


class WatchedCheckpointer(Checkpointer):
    """Notes at which steps this rank saves; has a slow rank go on as soon as rank 0 waits."""

    saved: ClassVar[list[int]] = []

    def save(self, progress: Progress, due: SaveDue) -> None:
        self.saved.append(progress.step)
        super().save(progress, due)

    def wait(self) -> None:
        if self._group.is_rank0 and self.is_busy:
            WatchedStore.go_on.touch()
        super().wait()
        if self._group.is_rank0:
            WatchedStore.go_on.unlink(missing_ok=True)


class WatchedTrainer(Trainer):
    """Has a rank whose own storage is fast never be busy."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.checkpointer.__class__ = WatchedCheckpointer

    def step(self) -> None:
        storing = self.checkpointer._thread._storing
        # Rank 0's is over when all have stored theirs.
        if storing is not None and not WatchedStore.is_slow and not self.group.is_rank0:
            futures.wait([storing], timeout=60)
        super().step()


def main(task: dict[str, Any], environment: dict[str, str], log: Path, outcome: Path) -> None:
    """Be a rank of a gloo group. Rank 0 writes what each of them says to `outcome`."""
    with one_of(environment, log) as group:
        tell_of_all(_train(task, group), group, outcome)


def _train(task: dict[str, Any], group: Group) -> dict[str, Any]:
    folder = RunFolder(task["storage"], task["run"])
    folder.store = WatchedStore(folder.url)
    WatchedStore.is_slow = task.get("is_slow", False)
    WatchedStore.go_on = Path(task["home"], "go-on")
    config = TrainConfig.model_validate(task["config"])
    trainer = WatchedTrainer(folder, with_monitor(config), task["attempt"], group)
    trainer.run()
    return {
        "resumed_from": trainer.records.first_step,
        "saved": WatchedCheckpointer.saved,
        "was_read": WatchedStore.was_read,
    }
