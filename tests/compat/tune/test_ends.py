"""A trial's training begins once its run is free, and ends no training but its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rank import alone
from tests.waiting import wait_for
from train_core import TrainConfig
from train_core.client.run_summaries import run_status
from train_core.errors import RunBusyError
from train_core.requests import DriverRequest, SearchTrial
from train_core.storage.coordination import lease
from train_core.storage.coordination.lease import Lease
from train_core.storage.coordination.stop_request import stop_request
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt
from train_core.tune.generations import Generation
from train_core.tune.trial_training import TrialTraining

CONFIG = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, epochs=50)
SEARCH = SearchTrial(search="exp", trial="ab12c_00000")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The run of a trial, at which no attempt was begun."""
    found = RunFolder(str(tmp_path / "runs"), "exp-ab12c-00000")
    alone.create(found, CONFIG, search=SEARCH)
    return found


@pytest.fixture
def held(folder: RunFolder) -> Iterator[Lease]:
    """The run as another process has it: this one."""
    held = begin_attempt(folder)
    yield held
    held.release()


def begin(folder: RunFolder, tmp_path: Path) -> TrialTraining:
    config = folder.record().config
    request = DriverRequest(
        storage=folder.storage, run=folder.name, config=config, is_paced=True, search=SEARCH
    )
    return TrialTraining(request, Generation(folder.name, config, SEARCH, 0), tmp_path / "log")


@pytest.fixture
def no_driver_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")


@pytest.mark.usefixtures("no_driver_starts")
@pytest.mark.promise("tune-restored")
def test_a_trial_that_is_begun_anew_waits_until_its_run_is_saved(
    held: Lease, folder: RunFolder, tmp_path: Path
) -> None:
    training = begin(folder, tmp_path)
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(training.next)
        with pytest.raises(TimeoutError):
            report.result(1)
        held.release()
        # It starts the driver from here on.
        with pytest.raises(FileNotFoundError, match="/no/python"):
            report.result(10)
    training.end()


@pytest.mark.usefixtures("no_driver_starts", "held")
@pytest.mark.promise("tune-restored")
def test_a_trial_that_is_ended_while_it_waits_starts_nothing(
    folder: RunFolder, tmp_path: Path
) -> None:
    training = begin(folder, tmp_path)
    training.end()
    # Else that no driver starts is raised here.
    assert training.next() is None


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.promise("tune-stopped")
def test_a_trial_does_not_end_a_training_that_another_process_has_begun(
    folder: RunFolder, tmp_path: Path
) -> None:
    training = begin(folder, tmp_path)
    wait_for(lambda: training._driver, 60)
    # As by `evertrain runs resume`, before the trial's driver has it.
    held = begin_attempt(folder)
    with pytest.raises(RunBusyError):
        training.next()
    training.end()
    assert stop_request(folder.store, held.attempt) is None
    held.release()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.promise("tune-stopped")
def test_a_trial_that_is_ended_before_its_driver_has_the_run_is_shown_as_stopped(
    folder: RunFolder, tmp_path: Path
) -> None:
    training = begin(folder, tmp_path)
    wait_for(lambda: training._driver, 60)
    training.end()
    assert lease.newest_attempt(folder.store) == 1
    assert run_status(folder).state == "stopped by the scheduler"
