"""`fit(on_report=…)`: a callback for each report, as it is committed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.client.grown import commit, create, grow
from train_core import TrainConfig, fit
from train_core.driver.report_feed import ReportFeed
from train_core.errors import CheckpointError
from train_core.fitting import reported_before
from train_core.requests import DriverRequest
from train_core.results import Reported
from train_core.storage.committed import Scan
from train_core.storage.records.journal import Entry
from train_core.storage.run_folder import RunFolder


@pytest.mark.timeout(240)
@pytest.mark.promise("on-report")
def test_each_validation_is_reported_once_and_in_order(tmp_path: Path) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, epochs=3, num_workers=1)
    seen: list[Reported] = []
    fit(config, storage=str(tmp_path), run="run", on_log=None, on_report=seen.append)
    # Retention has deleted some of their checkpoints: they are reports all the same.
    assert [one.step for one in seen] == [5, 10, 15]
    assert seen[-1].metrics == RunFolder(str(tmp_path), "run").checkpoints()[-1].metrics
    assert seen[-1].checkpoint is not None
    assert seen[-1].checkpoint.name == "step-00000015-a0001"


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.promise("on-report")
def test_a_run_that_goes_on_reports_what_is_new(tmp_path: Path) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, epochs=1)
    seen: list[Reported] = []
    train = partial(fit, storage=str(tmp_path), run="run", on_log=None, on_report=seen.append)
    train(config)
    train(config.model_copy(update={"epochs": 2}))
    assert [one.step for one in seen] == [5, 10]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.promise("on-report")
def test_a_callback_that_fails_ends_the_training_which_is_saved(tmp_path: Path) -> None:
    config = TrainConfig(
        workload="tests.rank.tiny:Tiny", batch_size=32, epochs=1000, settings={"one_cycle": False}
    )

    def refuse(_: Reported) -> None:
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        fit(config, storage=str(tmp_path), run="run", on_log=None, on_report=refuse)
    newest = RunFolder(str(tmp_path), "run").newest()
    assert newest is not None
    assert newest.step < 5000


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.promise("on-report")
def test_reports_without_a_folder_are_told_while_the_function_runs(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    config = TrainConfig(
        train_fn="tests.compat.functions.searched:reports_and_waits",
        train_loop_config={"go_on": str(go_on)},
        max_failures=1,
    )
    seen: list[Reported] = []

    def note(report: Reported) -> None:
        seen.append(report)
        if report.step == 2:
            # The function waits for it: it was told before its report was committed.
            go_on.touch()

    fit(config, storage=str(tmp_path), run="run", on_log=None, on_report=note)
    # It failed once after its third report, and made all of them again.
    assert [one.metrics["number"] for one in seen] == [1, 2, 3, 4]
    assert [one.checkpoint for one in seen] == [None] * 4


@pytest.mark.promise("on-report")
def test_a_validation_that_was_interrupted_is_told_when_it_is_repeated(tmp_path: Path) -> None:
    folder = create(str(tmp_path))
    request = DriverRequest(storage=str(tmp_path), run=folder.name, config=folder.record().config)
    assert reported_before(request) == 0
    validated = grow(folder, 2, 0.5)
    trained = [Entry(step=step, time=float(step), metrics={"train/loss": 1.0}) for step in (3, 4)]
    # It was stopped in the validation of step 4, and saved.
    commit(folder, 4, trained, validated, {}, validated=False)
    assert reported_before(request) == 2


@pytest.mark.promise("on-report")
def test_a_journal_that_changes_as_it_is_read_is_read_again(tmp_path: Path) -> None:
    folder = create(str(tmp_path))
    segment = grow(folder, 2, 0.5).manifest.journal[0]
    key = f"journal/{segment.name}"
    data = folder.store.read(key)
    folder.store.delete(key)
    feed = ReportFeed(folder, lambda _: (), is_function=False, poll_s=0.01)
    with feed.open():
        # As where a newer commit has it in another segment.
        assert feed.after(0, wait_s=0) == []
        # What stays so is damaged.
        with pytest.raises(CheckpointError, match=segment.name):
            feed.after(0, wait_s=0.2)
        folder.store.write(key, data)
        assert [one.step for one in feed.after(0, wait_s=0)] == [2]


class Counted(RunFolder):
    """Counts how often all checkpoints are looked at."""

    scans = 0

    def scan(self) -> Scan:
        Counted.scans += 1
        return super().scan()


@pytest.mark.promise("on-report")
def test_who_waits_for_a_report_reads_no_checkpoint_again(tmp_path: Path) -> None:
    folder = create(str(tmp_path))
    grow(folder, 2, 0.5)
    feed = ReportFeed(
        Counted(str(tmp_path), folder.name), lambda _: (), is_function=False, poll_s=0.001
    )
    with feed.open():
        assert [one.step for one in feed.after(0, wait_s=0)] == [2]
        Counted.scans = 0
        assert feed.after(2, wait_s=0.1) == []
        assert Counted.scans == 1
        # A checkpoint without a report, and one with.
        trained = Entry(step=3, time=3.0, metrics={"train/loss": 1.0})
        newest = commit(folder, 3, [trained], folder.newest(), {}, validated=False)
        assert feed.after(2, wait_s=0.1) == []
        assert Counted.scans == 2
        validated = Entry(step=4, time=4.0, metrics={"validation/loss": 1.0})
        commit(folder, 4, [validated], newest, {})
        assert [one.step for one in feed.after(2, wait_s=0)] == [4]
