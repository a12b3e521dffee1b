"""The report is whole before the tracker is waited for: only the addresses there come later."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.without_ray import stages_without_ray
from tests.tracking.run_builder import RunBuilder
from train_core.driver.held_run import HeldRun
from train_core.requests import DriverRequest
from train_core.stages import PUBLISH
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import read_report
from train_core.tracking.delivery.mirror import Mirror


class KilledError(BaseException):
    """The driver died."""


class KilledAsItWaits(Mirror):
    """The driver dies while it waits for the tracker."""

    def flush(self, timeout_s: float | None = None) -> bool:
        raise KilledError


def test_a_driver_that_dies_as_it_waits_for_the_tracker_leaves_a_whole_report(
    tmp_path: Path,
) -> None:
    run = RunBuilder(RunFolder(str(tmp_path), "run"))
    best = run.commit(range(1, 5), finished=True)
    left = CheckpointName(9, run.lease.attempt)
    run.folder.store.write(f"checkpoints/{left}/model.safetensors", b"of a save that died")
    run.new_attempt()
    request = DriverRequest(
        storage=run.folder.storage, run=run.folder.name, config=run.folder.record().config
    )
    driver = stages_without_ray(request)
    driver.held = HeldRun(driver.folder, run.lease)
    driver.mirror = KilledAsItWaits(run.folder, str(tmp_path / "nowhere"), "tests")
    arguments = PUBLISH.arguments(
        train=run.trained(best), evaluations=[], best=best, predictions=None, seconds={}
    )
    with pytest.raises(KilledError):
        driver.publish(arguments)
    report = read_report(run.folder)
    assert report is not None
    assert "published" in report.timeline
    assert str(left) not in run.folder.store.names("checkpoints")
    assert not report.tracking.run_id
