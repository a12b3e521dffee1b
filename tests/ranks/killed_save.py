"""A training that is killed before its k-th change of the storage, for every k.

`python -m tests.ranks.killed_save STORAGE [NOTES]` creates a run STORAGE/k for each k, lets
a process of its own train it, and kills that. The last one got through. Changes are those of a
disk, or with the folder NOTES operations of Store, on any storage.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.rank.alone import run
from tests.storage.doubles.faulty_store import FaultyStore
from tests.storage.doubles.killed import kill_before_each_change
from train_core.rank.checkpoint import journal_buffer
from train_core.storage.cleanup.orphans import delete_orphans_of_the_dead
from train_core.storage.cleanup.retention_after_commit import delete_superseded
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt

CONFIG: dict[str, Any] = {
    "settings": {"num_train": 64, "num_validation": 20},
    "batch_size": 32,
    "epochs": 1,
    "checkpoint_every_steps": 1,
    "checkpoint_backpressure": "wait",
    "keep_last": 1,
}
"""Two steps, each with a checkpoint; the second has the epoch's validation."""


def drive(folder: RunFolder) -> None:
    """An attempt, as a driver makes it."""
    held = begin_attempt(folder)
    delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
    run(folder, attempt=held.attempt, **CONFIG)
    delete_superseded(RunWriter(folder, held.attempt), folder.record().config)
    held.release()


def tell_nothing() -> None:
    """Write live.json at the end only: it comes by the clock, which changes the count."""
    journal_buffer._LIVE_EVERY_S = 1e6


def main(storage: str, notes: str = "") -> None:
    tell_nothing()
    with TemporaryDirectory() as elsewhere:
        # What torch loads when it is first used is loaded once, before the forks.
        drive(RunFolder(elsewhere, "warm"))
    if not notes:
        kill_before_each_change(lambda change: drive(RunFolder(storage, f"{change}")))

    def drive_and_die(change: int) -> None:
        folder = RunFolder(storage, f"{change}")
        folder.store = store = FaultyStore(folder.url, Path(notes, f"{change}"))
        store.fail_at(change, how="kill")
        drive(folder)

    kill_before_each_change(drive_and_die, die=lambda _: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
