"""A driver whose own Ray dies: it ends, so that the next try has a new one, or is ending anyway."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from benchmarks.services import mlflow_server
from tests.asked import evaluate, train
from tests.flows.mlflow_side import shown_at
from tests.ranks.ray_processes import part_of_ray, workers_of
from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Schedule
from tests.waiting import wait_for
from train_core import TrainConfig
from train_core.client.driver_handle import Driver
from train_core.errors import StageError
from train_core.requests import DriverRequest
from train_core.storage.run_folder import RunFolder
from train_core.text.log_lines import warning_in

pytestmark = pytest.mark.timeout(240)


@pytest.mark.slow
def test_a_driver_whose_head_of_ray_dies_ends_so_that_the_next_try_has_a_new_one(
    tmp_path: Path,
) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32)
    log: list[str] = []
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    with Driver.start(request, log.append) as driver:
        finalists = train(driver).finalists
        part_of_ray(driver, "gcs_server").kill()
        psutil.Process(driver.carrier.process.pid).wait(10)
        with pytest.raises(StageError, match="ended unexpectedly"):
            evaluate(driver, finalists, "validation")
    assert any("Ray's gcs_server died" in (warning_in(line) or "") for line in log)


class WaitsWithUpdates(Schedule):
    """Hands no update of a run on until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def take(self, method: str, target: str) -> Fault | None:
        if "runs/update" in target:
            assert self.goes_on.wait(60)
        return super().take(method, target)


@pytest.mark.slow
def test_a_driver_whose_ray_dies_while_it_is_closed_tells_mlflow_how_the_run_ended(
    tmp_path: Path,
) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32)
    with mlflow_server(tmp_path) as tracking, FaultProxy(tracking) as mlflow:
        mlflow.schedule = updates = WaitsWithUpdates()
        request = DriverRequest(
            storage=str(tmp_path / "runs"), run="run", config=config, tracking_uri=mlflow.url
        )
        driver = Driver.start(request, print)
        train(driver)
        process = psutil.Process(driver.carrier.process.pid)
        assert workers_of(process)
        closing = threading.Thread(target=driver.close)
        closing.start()
        try:
            # They end after the driver has heard that it shall end.
            wait_for(lambda: not workers_of(process), 20)
            part_of_ray(driver, "gcs_server").kill()
            with pytest.raises(psutil.TimeoutExpired):
                # Longer than it takes a driver that works to notice.
                process.wait(3)
        finally:
            updates.goes_on.set()
            closing.join()
        url = RunFolder(request.storage, "run").url
        assert shown_at(tracking, url)["pipeline"]["status"] == "FINISHED"
