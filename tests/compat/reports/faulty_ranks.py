"""Attempts whose storage fails, or kills the process, at an operation that a test names.

`python -m tests.compat.reports.faulty_ranks STORAGE NOTES` creates a run STORAGE/k for each k, lets
a process of its own report into it, and kills that at the k-th change. The last one got through.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.compat.reports.ranks import Ranks, write
from tests.rank.alone import create
from tests.ranks.killed_save import tell_nothing
from tests.storage.doubles.faulty_store import FaultyStore
from tests.storage.doubles.killed import kill_before_each_change
from train_core import TrainConfig
from train_core.functions.task import FunctionTask
from train_core.storage.cleanup.orphans import delete_orphans_of_the_dead
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt

REPORTS = 4
RETENTION: dict[str, Any] = {
    "keep_last": 1,
    "keep_best": 1,
    "monitor": "loss",
    "monitor_order": "min",
}


@dataclass(frozen=True)
class FaultyTask(FunctionTask):
    """A task whose run folder is on a store that may fail."""

    notes: str = ""

    @property
    def folder(self) -> RunFolder:
        found = RunFolder.at(self.url)
        found.store = FaultyStore(found.url, self.notes)
        return found


def new_run(storage: str, name: str) -> RunFolder:
    """A run whose first attempt has reported one folder."""
    folder = RunFolder(storage, name)
    create(folder, TrainConfig(train_fn="some.module:function"))
    drive(folder, num_reports=1)
    return folder


def drive(
    folder: RunFolder,
    *,
    num_reports: int = REPORTS,
    num_ranks: int = 1,
    task_type: Callable[..., FunctionTask] = FunctionTask,
) -> None:
    """An attempt, whose function makes so many reports in all; the second one has no folder."""
    held = begin_attempt(folder)
    delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
    ranks = Ranks(folder, num_ranks, attempt=held.attempt, task_type=task_type, **RETENTION)
    try:
        with TemporaryDirectory() as scratch:
            while ranks.number < num_reports:
                number = ranks.number + 1
                place = Path(scratch, f"{number}")
                folders = [
                    None if number == 2 else write(place / f"{rank}", **{f"of-{rank}": f"{number}"})
                    for rank in range(num_ranks)
                ]
                ranks.report(folders, {"loss": 1 / number})
                ranks.wait()
        if num_reports == REPORTS:
            ranks.end()
    finally:
        ranks.close()
        held.release()


def main(storage: str, notes: str) -> None:
    tell_nothing()

    def drive_and_die(change: int) -> None:
        folder = new_run(storage, f"{change}")
        store = FaultyStore(folder.url, Path(notes, f"{change}"))
        store.fail_at(change, how="kill")
        drive(folder, task_type=partial(FaultyTask, notes=str(store.notes)))

    kill_before_each_change(drive_and_die, die=lambda _: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
