"""The ranks of a report, without Ray: threads, a real store between them, a real run folder."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.engine.alone import create
from train_core import TrainConfig
from train_core.engine.checkpoint.verified_folder import cache_of, verified_folder
from train_core.engine.distributed.rendezvous import LOOPBACK, Membership, RendezvousStore
from train_core.engine.distributed.stop_source import post_stop
from train_core.engine.ray_train import reporter as reporter_module
from train_core.engine.ray_train.channel import DriverLostError, ReportChannel
from train_core.engine.ray_train.reporter import Reporter
from train_core.engine.ray_train.task import FunctionTask, Report, Settled
from train_core.errors import CheckpointError, FencedError, UserCodeError, WorkloadError
from train_core.storage.cleanup.superseded import delete_superseded
from train_core.storage.coordination.stop_request import StopRequest
from train_core.storage.records.journal import Entry, read_segments
from train_core.storage.run_folder import Checkpoint, RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, next_attempt


class Ranks:
    """All ranks of an attempt, in threads of this process."""

    def __init__(self, folder: RunFolder, world_size: int, *, attempt: int, **change: Any) -> None:
        self.store = RendezvousStore(LOOPBACK)
        newest, start = folder.newest(), folder.newest_reported()
        host, port = self.store.address
        self.task = FunctionTask(
            url=folder.url,
            attempt=attempt,
            config=TrainConfig(train_fn="some.module:function", **change),
            host=host,
            port=port,
            newest=str(newest.name) if newest else None,
            start=str(start.name) if start else None,
            origin=None,
        )
        self.number = newest.step if newest else 0
        self.reporters = [Reporter(self.task, rank, world_size) for rank in range(world_size)]

    def report(
        self, folders: list[Path | None], metrics: dict[str, Any] | None = None, **more: Any
    ) -> list[Settled]:
        """One report of all ranks."""
        self.number += 1

        def of(rank: int, folder: Path | None) -> Report:
            found = {"rank": rank, **(metrics or {})}
            return Report(self.number, found, Given(folder) if folder else None, **more)

        futures = [
            reporter.report(of(rank, folder))
            for rank, (reporter, folder) in enumerate(zip(self.reporters, folders, strict=True))
        ]
        return [future.result(30) for future in futures]

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
    def opened(self) -> Iterator[Path]:
        yield self.folder

    def clean_up(self) -> None:
        """It stays."""


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    found = RunFolder(storage_url, "run")
    create(found, TrainConfig(train_fn="some.module:function"))
    return found


@pytest.fixture
def start(folder: RunFolder) -> Iterator[Callable[..., Ranks]]:
    """Begins an attempt with as many ranks."""
    made: list[Ranks] = []
    held = begin_attempt(folder)

    def begin(world_size: int, **change: Any) -> Ranks:
        if made:
            next_attempt(folder, held)
        made.append(Ranks(folder, world_size, attempt=held.attempt, **change))
        return made[-1]

    yield begin
    for ranks in made:
        ranks.close()
    held.release()


def contents(folder: RunFolder, checkpoint: Checkpoint) -> dict[str, str]:
    """The texts of the files that were reported, by their names."""
    return {
        entry.name: folder.store.read(f"{checkpoint.key}/{entry.name}").decode()
        for entry in checkpoint.manifest.files
    }


def entries(folder: RunFolder) -> list[Entry]:
    newest = folder.newest()
    assert newest is not None
    return list(read_segments(folder.store, newest.manifest.journal))


def test_the_folders_of_all_ranks_become_one_checkpoint(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(3)
    folders = [write(tmp_path / str(rank), **{f"model-{rank}": str(rank)}) for rank in (0, 2)]
    settled = ranks.report([folders[0], None, folders[1]], {"loss": 0.5, "epoch": 2}, name="best")
    (committed,) = folder.checkpoints()
    assert {one.checkpoint for one in settled} == {str(committed.name)} == {"step-00000001-a0001"}
    assert contents(folder, committed) == {"files/model-0": "0", "files/model-2": "2"}
    manifest = committed.manifest
    assert manifest.metrics == {"rank": 0, "loss": 0.5, "epoch": 2}
    assert manifest.epoch == 2
    assert manifest.reported is not None
    assert (manifest.reported.name, manifest.reported.world_size) == ("best", 3)
    (entry,) = entries(folder)
    assert entry.by_rank["2"]["rank"] == 2
    assert entry.by_rank.keys() == {"1", "2"}


def test_a_name_of_several_ranks_is_the_first_ones_and_is_warned_about(
    folder: RunFolder,
    start: Callable[..., Ranks],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ranks = start(2)
    folders = [write(tmp_path / str(rank), same=f"of {rank}") for rank in (0, 1)]
    ranks.report([*folders])
    (committed,) = folder.checkpoints()
    assert contents(folder, committed) == {"files/same": "of 0"}
    assert [one for one in caplog.messages if "files of one name (same)" in one]


def test_metrics_without_a_folder_are_covered_by_the_next_commit(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(2)
    for number in range(3):
        settled = ranks.report([None, None], {"loss": number, "text": "a"})
        assert {one.checkpoint for one in settled} == {None}
    assert folder.checkpoints() == []
    ranks.end()
    (end,) = folder.checkpoints()
    assert end.manifest.is_function_end
    assert end.step == 4
    assert [entry.step for entry in entries(folder)] == [1, 2, 3]
    assert [entry.metrics["loss"] for entry in entries(folder)] == [0, 1, 2]
    assert {entry.texts["text"] for entry in entries(folder)} == {"a"}


def test_another_attempt_counts_on_from_the_newest_checkpoint(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    first = start(1)
    first.report([write(tmp_path / "1", a="1")], {"loss": 1})
    # Nobody commits it.
    first.report([None], {"loss": 2})
    second = start(1)
    second.report([None], {"loss": 2})
    second.report([write(tmp_path / "3", a="3")], {"loss": 3})
    second.end()
    assert [(entry.step, entry.metrics["loss"]) for entry in entries(folder)] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]
    assert [str(one.name) for one in folder.checkpoints()] == [
        "step-00000001-a0001",
        "step-00000003-a0002",
        "step-00000004-a0002",
    ]


def test_a_replaced_attempt_commits_nothing_and_every_rank_raises(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    replaced = start(2)
    start(2)
    with pytest.raises(FencedError):
        replaced.report([None, write(tmp_path / "a", a="1")])
    with pytest.raises(FencedError):
        replaced.reporters[1].wait_for_all()
    assert folder.checkpoints() == []


def test_a_folder_that_cannot_be_stored_fails_on_every_rank(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(2)
    with pytest.raises(WorkloadError, match="is no folder"):
        ranks.report([None, tmp_path / "missing"])
    with pytest.raises(WorkloadError, match="is no folder"):
        ranks.reporters[1].wait_for_all()
    assert folder.checkpoints() == []


def test_a_request_to_end_is_recorded_with_the_next_folder(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(2)
    post_stop(ranks.store, ranks.task.group, StopRequest(reason="it is late"))
    settled = ranks.report([write(tmp_path / "a", a="1"), None])
    assert {one.stop for one in settled} == {"it is late"}
    (committed,) = folder.checkpoints()
    assert committed.manifest.stopped_by == "request"


def test_retention_deletes_what_no_rule_keeps(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(1, keep_last=1, keep_best=2, monitor="loss", monitor_order="min")
    for number, loss in enumerate((3.0, 1.0, 2.0, 4.0, None)):
        metrics = {} if loss is None else {"loss": loss}
        ranks.report([write(tmp_path / str(number), a=str(number))], metrics)
    ranks.wait()
    # Another rank may still be handed the one before the newest.
    assert [one.step for one in folder.checkpoints()] == [2, 3, 4, 5]
    ranks.end()
    delete_superseded(RunWriter(folder, 1), ranks.task.config)
    assert [one.step for one in folder.checkpoints()] == [2, 3, 5, 6]


def test_a_folder_is_verified_before_it_is_handed_out(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(1)
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "er.bin").write_text("whole")
    ranks.report([tmp_path / "a"])
    (committed,) = folder.checkpoints()
    found = verified_folder(folder, committed, cache_of(folder, 1))
    assert (found / "deep" / "er.bin").read_text() == "whole"
    key = f"{committed.key}/files/deep/er.bin"
    folder.store.write(key, b"wh0le")
    with pytest.raises(CheckpointError, match=r"er\.bin"):
        verified_folder(folder, committed, cache_of(folder, 2))


def test_an_empty_folder_is_a_folder(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(1)
    (tmp_path / "empty").mkdir()
    ranks.report([tmp_path / "empty"])
    (committed,) = folder.checkpoints()
    assert not committed.manifest.is_function_end
    assert os.listdir(verified_folder(folder, committed, cache_of(folder, 1))) == []


def test_a_rank_that_is_closed_before_it_could_begin_raises_nothing(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_connect = threading.Event()

    class LateChannel(ReportChannel):
        def __init__(self, own: Membership) -> None:
            may_connect.wait(30)
            super().__init__(own)

    monkeypatch.setattr(reporter_module, "ReportChannel", LateChannel)
    ranks = Ranks(folder, 1, attempt=1)
    ranks.close()
    may_connect.set()
    # The store has to live until it has connected.
    ranks.reporters[0]._channel.result(30)


def test_ranks_that_do_not_report_as_often_are_told_apart() -> None:
    store = RendezvousStore(LOOPBACK)
    ranks = [
        ReportChannel(store.membership("group", rank, 2, 0), timedelta(seconds=0.2))
        for rank in range(2)
    ]
    ranks[0].send("report-3", {})
    ranks[1].send("function-end", {})
    with pytest.raises(UserCodeError, match="rank 1 is at function-end while others are at report"):
        ranks[0].collect("report-3", unless="function-end")


def test_a_store_that_is_gone_is_noticed() -> None:
    store = RendezvousStore(LOOPBACK)
    channel = ReportChannel(store.membership("group", 0, 1, 0))
    del store
    gc.collect()
    with pytest.raises(DriverLostError):
        channel.wait_for("report-1/plan")
