"""The ranks of reports, without Ray: threads, a real store between them, a real run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from train_core import TrainConfig
from train_core.functions.reports.reported_files import LocalFolder
from train_core.functions.reports.reporter import Reporter
from train_core.functions.task import FunctionTask, Report, Settled
from train_core.rank.distributed.rendezvous import LOOPBACK, RendezvousStore
from train_core.storage.records.journal import Entry, read_segments
from train_core.storage.run_folder import Commit, RunFolder


class Ranks:
    """All ranks of an attempt, in threads of this process."""

    def __init__(
        self,
        folder: RunFolder,
        world_size: int,
        *,
        attempt: int,
        task_type: Callable[..., FunctionTask] = FunctionTask,
        **change: Any,
    ) -> None:
        self.store = RendezvousStore(LOOPBACK)
        start = folder.newest_reported()
        host, port = self.store.address
        self.task = task_type(
            url=folder.url,
            attempt=attempt,
            config=TrainConfig(train_fn="some.module:function", **change),
            host=host,
            port=port,
            start=str(start.name) if start else None,
            origin=None,
        )
        self.number = start.step if start else 0
        self.reporters = [Reporter(self.task, rank, world_size) for rank in range(world_size)]

    def report(
        self,
        folders: list[Path | None],
        metrics: dict[str, Any] | None = None,
        *,
        wait_s: float = 30,
        **more: Any,
    ) -> list[Settled]:
        """One report of all ranks, which is waited for so long."""
        self.number += 1

        def of(rank: int, folder: Path | None) -> Report:
            found = {"rank": rank, **(metrics or {})}
            return Report(self.number, found, Given(folder) if folder else None, **more)

        futures = [
            reporter.report(of(rank, folder))
            for rank, (reporter, folder) in enumerate(zip(self.reporters, folders, strict=True))
        ]
        return [future.result(wait_s) for future in futures]

    def end(self) -> None:
        with ThreadPoolExecutor(len(self.reporters)) as pool:
            ends = [pool.submit(one.end, self.number + 1) for one in self.reporters]
            for end in ends:
                end.result(30)

    def wait(self) -> None:
        """Until what follows the last report is done as well."""
        for reporter in self.reporters:
            reporter.wait_until_idle()

    def close(self) -> None:
        for reporter in self.reporters:
            reporter.close()


class Given:
    """A folder that stays where it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def opened(self) -> Iterator[LocalFolder]:
        yield LocalFolder(self.folder)

    def place(self) -> str:
        return str(self.folder)

    def clean_up(self) -> None:
        """It stays."""


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def contents(folder: RunFolder, checkpoint: Commit) -> dict[str, str]:
    """The texts of the files that were reported, by their names."""
    return {
        entry.name: folder.store.read(f"{checkpoint.key}/{entry.name}").decode()
        for entry in checkpoint.manifest.files
    }


def entries(folder: RunFolder) -> list[Entry]:
    newest = folder.newest()
    assert newest is not None
    return list(read_segments(folder.store, newest.manifest.journal))
