"""The stages of the driver, in this process: who was replaced, who begins, who begins again."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.engine.alone import run
from tests.storage.faulty_store import FaultyStore
from train_core.engine.driver.held_run import HeldRun
from train_core.engine.driver.stages import RunStages
from train_core.engine.driver.workers import ClusterWorkers
from train_core.errors import FencedError, StorageError
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest
from train_core.storage.coordination import lease
from train_core.storage.records.names import MODEL_FILE
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


def test_a_replaced_driver_evaluates_infers_and_publishes_nothing(folder: RunFolder) -> None:
    run(folder)
    request = DriverRequest(storage=folder.storage, run=folder.name, config=folder.record().config)
    # Of a cluster that was joined, which nothing here asks for anything.
    driver = RunStages(request, ClusterWorkers())
    driver.held = HeldRun.take(folder)
    folder.store.create("lease/0002.json", folder.store.read("lease/0001.json"))
    before = folder.store.names()
    for stage in (
        lambda: driver.evaluate([], "test"),
        lambda: driver.infer({}, "test"),
        driver.publish,
    ):
        with pytest.raises(FencedError):
            stage()
    assert folder.store.names() == before
    driver.close("FAILED")


def test_a_driver_that_begins_collects_what_a_dead_one_left(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    run(folder)
    (committed,) = folder.checkpoints()
    folder.store.write(f"checkpoints/step-00000099-a0001/{MODEL_FILE}", b"half a checkpoint")
    folder.store.write("journal/steps-00000006-00000099-a0001.jsonl", b"{}")
    segments = [entry.name for entry in committed.manifest.journal]
    HeldRun.take(folder).release(EndStatus.FAILED)
    assert folder.store.names("checkpoints") == [str(committed.name)]
    assert folder.store.names("journal") == segments


@pytest.mark.parametrize("done", [False, True], ids=["refused", "lost answer"])
def test_a_restart_in_an_outage_is_tried_again(
    folder: RunFolder, tmp_path: Path, done: bool
) -> None:
    """Whichever object of a new attempt is not created, the next try has the run all the same."""
    run(folder)
    for number in count(1):
        store = FaultyStore(folder.url, tmp_path / f"notes-{number}")
        again = RunFolder(folder.storage, folder.name)
        held = HeldRun.take(again)
        first = held.supervisor.begin_attempt()
        again.store = held.lease.store = store
        store.fail_at(number, kind="create", done=done)
        try:
            # The heart's own writes are none of these.
            second = held.supervisor.begin_attempt()
        except StorageError:
            failed = True
            second = held.supervisor.begin_attempt()
        else:
            failed = False
        held.release(EndStatus.FAILED)
        assert first < second == lease.newest_attempt(folder.store)
        if not failed:
            assert number > 2
            return
