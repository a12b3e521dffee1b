"""What a function reported after its newest folder counts also if no other attempt follows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.reports.ranks import Ranks, entries, write
from train_core import infer, open_run
from train_core.client.run_summaries import list_runs, run_status
from train_core.errors import ConfigError, FencedError
from train_core.fitting import reported_before
from train_core.functions.launcher import FunctionLauncher, _keep_metrics
from train_core.functions.reports.channel import ReportChannel
from train_core.functions.reports.committer import Committer, uncovered_topic
from train_core.policy.stop_reasons import StopReason
from train_core.rank.distributed.rendezvous import Membership
from train_core.requests import DriverRequest
from train_core.storage.cleanup.retention_after_commit import delete_superseded
from train_core.storage.records.documents import MAX_ENTRIES
from train_core.storage.records.manifest import ReportedFolder
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter
from train_core.storage.runs_of_storage import is_training_finished


def keep(folder: RunFolder, ranks: Ranks, why: StopReason = StopReason.FAILURE) -> None:
    """As the supervisor does after an attempt that no other one follows."""
    _keep_metrics(folder, ranks.task, ranks.store, time.monotonic(), ranks.task.attempt, why)


def losses(folder: RunFolder) -> list[tuple[int, float | None]]:
    return [(entry.step, entry.metrics["loss"]) for entry in entries(folder)]


def test_the_reports_of_a_function_that_fails_for_good_are_committed(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(2)
    ranks.report([write(tmp_path / "1", a="1"), None], {"loss": 1, "epoch": 0})
    for number in (2, 3):
        ranks.report([None, None], {"loss": number, "epoch": number - 1, "text": "a"})
    # Its processes are gone.
    ranks.close()
    keep(folder, ranks)
    newest = folder.newest()
    assert newest is not None
    assert (str(newest.name), newest.manifest.stopped_by) == ("step-00000002-a0001", "failure")
    assert newest.manifest.is_function_end
    assert (newest.manifest.epoch, newest.metrics["loss"]) == (2, 3)
    assert losses(folder) == [(1, 1), (2, 2), (3, 3)]
    assert entries(folder)[2].by_rank["1"] == {"rank": 1, "loss": 3, "epoch": 2}
    assert not is_training_finished(newest, ranks.task.config)


@pytest.mark.promise("own-training-function")
def test_a_function_that_goes_on_reports_them_again_and_none_is_there_twice(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    first = start(1)
    first.report([write(tmp_path / "1", a="1")], {"loss": 1})
    for number in (2, 3, 4):
        first.report([None], {"loss": number})
    keep(folder, first, StopReason.REQUEST)
    second = start(1)
    assert second.task.start == "step-00000001-a0001"
    for number in (2, 3):
        second.report([write(tmp_path / f"{number}", a="2")], {"loss": 10 * number})
    second.wait()
    newest = folder.newest()
    assert newest is not None
    assert str(newest.name) == "step-00000003-a0002"
    assert losses(folder) == [(1, 1), (2, 20), (3, 30)]
    second.end()
    delete_superseded(RunWriter(folder, 2), second.task.config)
    # No rule keeps the commit of the first attempt.
    assert [str(one.name) for one in folder.checkpoints()] == [
        "step-00000001-a0001",
        "step-00000002-a0002",
        "step-00000003-a0002",
        "step-00000004-a0002",
    ]


def test_reports_without_any_folder_count_as_well_and_replace_those_of_the_attempt_before(
    folder: RunFolder, start: Callable[..., Ranks]
) -> None:
    for attempt in (1, 2):
        ranks = start(1)
        for number in (1, 2):
            ranks.report([None], {"loss": 10 * attempt + number})
        keep(folder, ranks)
    assert [str(one.name) for one in folder.checkpoints()] == [
        "step-00000001-a0001",
        "step-00000001-a0002",
    ]
    assert losses(folder) == [(1, 21), (2, 22)]


def test_the_best_of_a_run_in_lists_is_that_of_its_folders(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(1)
    ranks.report([None], {"loss": 3})
    keep(folder, ranks)
    (listed,), status = list_runs(folder.storage), run_status(folder)
    assert (listed.step, listed.best, status.best, status.checkpoints) == (1, None, None, 0)
    with pytest.raises(ConfigError, match="run 'run' has no checkpoint yet"):
        open_run(folder.url).latest()
    ranks = start(1)
    ranks.report([write(tmp_path / "1", a="1")], {"loss": 1})
    # Greater, but of no folder.
    ranks.report([None], {"loss": 2})
    ranks.end()
    (listed,), status = list_runs(folder.storage), run_status(folder)
    assert (listed.step, listed.best, status.best, status.checkpoints) == (3, 1, 1, 1)


def test_a_run_that_ended_without_a_folder_says_so(
    folder: RunFolder, start: Callable[..., Ranks]
) -> None:
    start(1).end()
    told = "run 'run' has no checkpoint: its training function reported none"
    for get in (open_run(folder.url).latest, open_run(folder.url).best):
        with pytest.raises(ConfigError, match=told):
            get()
    with pytest.raises(ConfigError, match=told):
        infer("test", storage=folder.storage, run="run")


def test_nothing_is_committed_where_a_folder_covers_all_reports(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(1)
    ranks.report([None], {"loss": 1})
    ranks.report([write(tmp_path / "2", a="2")], {"loss": 2})
    keep(folder, ranks)
    assert [one.step for one in folder.checkpoints()] == [2]


def test_a_replaced_attempt_keeps_nothing(
    folder: RunFolder, start: Callable[..., Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    replaced = start(1)
    replaced.report([None], {"loss": 1})
    start(1)
    keep(folder, replaced)
    assert folder.checkpoints() == []
    assert str(FencedError(1, 2)) in caplog.text


@pytest.mark.parametrize(
    "names",
    [[f"m{number}" for number in range(MAX_ENTRIES + 1)], ["m" * 2000]],
    ids=["too many", "too long"],
)
def test_metrics_that_no_manifest_can_have_do_not_hide_why_the_training_ended(
    folder: RunFolder,
    start: Callable[..., Ranks],
    caplog: pytest.LogCaptureFixture,
    names: list[str],
) -> None:
    ranks = start(1)
    ranks.report([None], dict.fromkeys(names, 0.5))
    ranks.close()
    keep(folder, ranks)
    assert folder.checkpoints() == []
    assert "the metrics of the last reports are not kept" in caplog.text


@pytest.mark.promise("on-report")
def test_only_what_a_function_makes_again_is_told_again(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    first = start(1)
    first.report([write(tmp_path / "1", a="1")], {"loss": 1})
    first.report([None], {"loss": 2})
    first.wait()
    asked = first.task.config
    request = DriverRequest(storage=folder.storage, run=folder.name, config=asked)
    # Its second report is committed with its end.
    keep(folder, first)
    assert reported_before(request) == 1
    second = start(1)
    second.report([None], {"loss": 2})
    second.report([None], {"loss": 3})
    second.end()
    assert reported_before(request) == 3


@pytest.mark.promise("on-report")
def test_a_report_with_a_folder_is_not_told_without_it_as_it_is_committed(
    folder: RunFolder, start: Callable[..., Ranks]
) -> None:
    ranks, launcher = start(1), FunctionLauncher()
    task = ranks.task
    channel = ReportChannel(Membership(task.host, task.port, task.group, 0, 1))
    committer = Committer(task, channel)
    committer.add(1, [{"loss": 1.0}])
    committer.add(2, [{"loss": 2.0}], has_folder=True)

    def read(key: str) -> str | None:
        found = ranks.store.read(task.group, key)
        if key == uncovered_topic(2) and not folder.checkpoints():
            committer.commit(2, ReportedFolder(name="", world_size=1), [], stops=False)
            committer.clean_up()
        return found

    launcher._read = read
    assert [one.step for one in launcher.uncovered(0)] == [1]
    assert [one.step for one in folder.checkpoints()] == [2]
    committer.close()
