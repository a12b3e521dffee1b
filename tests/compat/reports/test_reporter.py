"""The ranks of a report, without Ray: threads, a real store between them, a real run folder."""

from __future__ import annotations

import gc
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.compat.reports.ranks import Given, Ranks, contents, entries, write
from train_core.errors import CheckpointError, FencedError, UserCodeError, WorkloadError
from train_core.functions.reports import reporter as reporter_module
from train_core.functions.reports.channel import DriverLostError, ReportChannel
from train_core.functions.reports.committer import Committer
from train_core.functions.reports.reported_files import LocalFolder
from train_core.functions.task import FunctionTask, Report, Settled
from train_core.functions.validations import record_validation
from train_core.rank.checkpoint.verified_folder import cache_of, verified_folder
from train_core.rank.distributed.rendezvous import LOOPBACK, Membership, RendezvousStore
from train_core.rank.distributed.stop_requests import post_stop
from train_core.storage.cleanup.retention_after_commit import delete_superseded
from train_core.storage.coordination.stop_request import StopRequest
from train_core.storage.records.manifest import RequestedValidation
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter
from train_core.timing import FunctionTiming


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


def test_one_folder_that_all_ranks_report_is_no_collision(
    folder: RunFolder,
    start: Callable[..., Ranks],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = write(tmp_path / "shared", a="1", b="2")
    start(2).report([shared, shared])
    (committed,) = folder.checkpoints()
    assert contents(folder, committed) == {"files/a": "1", "files/b": "2"}
    assert [one for one in caplog.messages if "files of one name" in one] == []


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
        def __init__(self, own: Membership, timing: FunctionTiming) -> None:
            may_connect.wait(30)
            super().__init__(own, timing)

    monkeypatch.setattr(reporter_module, "ReportChannel", LateChannel)
    ranks = Ranks(folder, 1, attempt=1)
    ranks.close()
    may_connect.set()
    # The store has to live until it has connected.
    ranks.reporters[0]._channel.result(30)


def test_one_that_is_closed_while_its_journal_is_opened_leaves_no_thread(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_opening, may_open = threading.Event(), threading.Event()

    class LateCommitter(Committer):
        def __init__(self, task: FunctionTask, channel: ReportChannel) -> None:
            is_opening.set()
            may_open.wait(30)
            super().__init__(task, channel)

    monkeypatch.setattr(reporter_module, "Committer", LateCommitter)
    ranks = Ranks(folder, 1, attempt=1)
    assert is_opening.wait(30)
    ranks.close()
    may_open.set()
    # It is opened all the same, and `no_leaks` finds its thread if it is not closed then.
    assert ranks.reporters[0]._committer
    ranks.reporters[0]._committer.result(30)


def test_ranks_that_do_not_report_as_often_are_told_apart() -> None:
    store = RendezvousStore(LOOPBACK)
    timing = FunctionTiming(long_wait_s=0.2)
    ranks = [ReportChannel(store.membership("group", rank, 2, 0), timing) for rank in range(2)]
    ranks[0].send("report-3", {})
    ranks[1].send("function-end", {})
    with pytest.raises(UserCodeError, match="rank 1 is at function-end while others are at report"):
        ranks[0].collect("report-3", unless="function-end")


@pytest.mark.parametrize("late", [0, 1, 2])
def test_one_warning_says_which_ranks_wait_for_which(
    late: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = RendezvousStore(LOOPBACK)
    timing = FunctionTiming(wait_told_s=0.3)
    ranks = [ReportChannel(store.membership("group", rank, 3, 0), timing) for rank in range(3)]
    come = [rank for rank in range(3) if rank != late]

    def report(rank: int) -> None:
        ranks[rank].send("report-1", rank)
        if rank == 0:
            ranks[0].announce("report-1/plan", ranks[0].collect("report-1"))
        assert ranks[rank].wait_for("report-1/plan", after="report-1") == [0, 1, 2]

    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(report, rank) for rank in come]
        wait(done, 1.5)
        done.append(pool.submit(report, late))
        for one in done:
            one.result(30)
    (told,) = caplog.messages
    assert told.startswith(f"ranks {come[0]}, {come[1]} waited 0.3 s for rank {late} at report-1")


def test_a_store_that_is_gone_is_noticed() -> None:
    store = RendezvousStore(LOOPBACK)
    channel = ReportChannel(store.membership("group", 0, 1, 0))
    del store
    gc.collect()
    with pytest.raises(DriverLostError):
        channel.wait_for("report-1/plan")


def test_what_a_function_was_handed_stays_until_a_report_that_it_makes_later_is_committed(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(2, keep_last=1, keep_best=1, monitor="loss", monitor_order="min")
    is_read = threading.Event()

    class Slow(Given):
        @contextmanager
        def opened(self) -> Iterator[LocalFolder]:
            assert is_read.wait(30)
            yield LocalFolder(self.folder)

    def report(number: int) -> list[Future[Settled]]:
        source = Slow(write(tmp_path / f"{number}", text=f"{number}"))
        made = Report(number, {"loss": 1 / number}, source)
        return [one.report(made, in_background=True) for one in ranks.reporters]

    def steps() -> list[int]:
        ranks.wait()
        return [one.step for one in folder.checkpoints()]

    ranks.report([write(tmp_path / "1", text="1"), None], {"loss": 1})
    for number in (2, 3, 4):
        report(number)
    # Rank 1 reads it, while what it has reported before is stored in the background.
    assert ranks.reporters[1].hold_newest(4) == "step-00000001-a0001"
    is_read.set()
    assert steps() == [1, 3, 4]
    report(5)
    assert steps() == [4, 5]


def test_a_checkpoint_that_awaits_its_validation_stays_also_when_its_attempt_has_died(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    rules = {"keep_last": 1, "keep_best": 1, "monitor": "loss", "monitor_order": "max"}
    first = start(1, **rules)
    for number in (1, 2, 3):
        source = write(tmp_path / f"{number}", text=f"{number}")
        first.report([source], {"loss": number}, validation={"fn_kwargs": {"size": number}})
    second = start(1, **rules)
    for number in (4, 5, 6):
        second.report([write(tmp_path / f"{number}", text=f"{number}")], {"loss": number})
    second.wait()
    found = {one.step: one for one in folder.checkpoints()}
    assert list(found) == [1, 2, 3, 5, 6]
    reported = found[2].manifest.reported
    assert reported is not None
    assert reported.requested_validation == RequestedValidation(fn_kwargs={"size": 2})
    for step in (1, 2):
        record_validation(folder, found[step], {"accuracy": 0.5})
    delete_superseded(RunWriter(folder, 2), second.task.config)
    assert [one.step for one in folder.checkpoints()] == [3, 6]


@pytest.mark.parametrize(
    ("reported", "read"),
    [
        ({"step": 2, "flag": True, "loss": 1.0}, None),
        ({"text": "a", "list": [1, 2.0], "eval": {"rows": 3}, "nothing": None}, None),
        # JSON has no such numbers.
        ({"step": 2, "nan": math.nan, "most": math.inf}, {"step": 2, "nan": None, "most": None}),
        # No manifest should have so much: the numbers are there as before.
        ({"step": 2, "text": "a" * 70_000}, {"step": 2.0}),
        ({"step": 10**30}, {"step": 1e30}),
    ],
)
def test_what_was_reported_is_read_as_it_was(
    folder: RunFolder,
    start: Callable[..., Ranks],
    tmp_path: Path,
    reported: dict[str, object],
    read: dict[str, object] | None,
) -> None:
    start(1).report([write(tmp_path / "a", a="1")], {"rank": 0.0, **reported})
    (committed,) = folder.checkpoints()
    expected = {"rank": 0.0, **(reported if read is None else read)}
    assert repr(committed.reported_metrics) == repr(expected)
    assert {type(one) for one in committed.metrics.values()} <= {float, type(None)}


def test_the_end_has_what_rank_0_returned(
    folder: RunFolder, start: Callable[..., Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    first = start(1)
    first.reporters[0].end(1, {"a": (1, np.float32(0.5))})
    (end,) = folder.checkpoints()
    assert end.manifest.returned == {"a": [1, 0.5]}
    second = start(1)
    second.reporters[0].end(2, {"weights": np.zeros(100)})
    assert folder.checkpoints()[-1].manifest.returned is None
    assert [one for one in caplog.messages if "is not kept: it has a ndarray" in one]
