"""A caller that closes while its job is being prepared, or as it has died."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.services import free_port
from tests.asked import train
from tests.waiting import wait_for
from train_core import TrainConfig
from train_core.client.carriers.job import JobCarrier
from train_core.client.carriers.ray_jobs import RayJobs
from train_core.client.driver_handle import Driver
from train_core.errors import JobEndedError, ResourceError, StageError
from train_core.requests import DriverRequest, Prepared, Request
from train_core.stages import PREPARE
from train_core.storage.coordination.job_mailbox import THE_JOB, Mailbox
from train_core.storage.run_folder import RunFolder
from train_core.timing import CallerTiming, Timing

PREPARED = PREPARE.answer(
    result=Prepared(run="run", url="", resumed=False, num_samples={}, total_steps=0)
).to_json()

pytestmark = pytest.mark.timeout(60)


class JobsThatDie(RayJobs):
    """There is no cluster: a job answers its first call, and dies. A later one starts when it may.

    `entered` is set while the submission of a later job waits for `may_go_on`.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.submitted: list[str] = []
        self.entered, self.may_go_on = threading.Event(), threading.Event()
        self._folder = folder

    def url(self, job: str) -> str:
        return f"http://nowhere/#/jobs/{job}"

    def submit(self, job: str, command: list[str], runtime_env: dict[str, Any]) -> bool:
        if job in self.submitted:
            return False
        if self.submitted:
            self.entered.set()
            assert self.may_go_on.wait(50)
        self.submitted.append(job)
        Mailbox(self._folder.store, job, THE_JOB).answer(command[-1], PREPARED)
        return True

    def is_running(self, job: str) -> bool:
        return False

    def has_ended(self, job: str) -> bool | None:
        return True

    def end_of(self, job: str) -> str:
        return f"job {job} FAILED"

    def follow(self, job: str, write: Callable[[str], None], stop: threading.Event) -> None:
        stop.wait()


class CarrierOfJobsThatDie(JobCarrier):
    """Their cluster is not there."""

    def __init__(self, request: Request, jobs: RayJobs) -> None:
        timing = Timing(callers=CallerTiming(job_poll_interval_s=0.05, last_lines_s=0.5))
        super().__init__(request, print, timing)
        self._jobs_that_die = jobs

    def _cluster(self) -> RayJobs:
        return self._jobs_that_die


def calls_to(folder: RunFolder, job: str) -> list[str]:
    """The objects of the job's callers."""
    mailbox = Mailbox(folder.store, job)
    return [*mailbox.call_names(), *mailbox.heartbeats()]


def request_to_train(folder: RunFolder) -> DriverRequest:
    return DriverRequest(storage=folder.storage, run="run", config=TrainConfig(ray_address="x"))


def test_a_close_does_not_wait_for_a_job_that_is_being_submitted(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    jobs, request = JobsThatDie(folder), request_to_train(folder)
    with Driver(request, CarrierOfJobsThatDie(request, jobs)) as driver:
        driver.prepared()
        with pytest.raises(JobEndedError):
            train(driver)
        # Another try, as a session makes it, has another driver.
        assert not driver.is_alive
    again = Driver(request, CarrierOfJobsThatDie(request, jobs))
    assert jobs.entered.wait(30)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(again.close, "KILLED")
        try:
            closing.result(10)
        finally:
            jobs.may_go_on.set()
    with pytest.raises(StageError, match="the driver ends"):
        again.prepared()
    # Nobody calls the new job any more; the thread that submits it finds that out by itself.
    wait_for(lambda: len(jobs.submitted) == 2 and not calls_to(folder, jobs.submitted[1]), 30)


@pytest.mark.promise("cluster-capacity")
def test_a_cluster_that_was_there_before_is_waited_for(storage_url: str) -> None:
    soon = Timing(callers=CallerTiming(cluster_wait_s=1.0, job_poll_interval_s=0.1))
    config = TrainConfig(ray_address=f"127.0.0.1:{free_port()}")
    request = DriverRequest(storage=storage_url, run="run", config=config)
    lines: list[str] = []

    def driver() -> Driver:
        return Driver(request, JobCarrier(request, lines.append, soon))

    with driver() as at_once, pytest.raises(ResourceError, match="no Ray cluster answers"):
        at_once.prepared()
    assert not lines
    Mailbox(RunFolder(storage_url, "run").store, "run-a0001-0a1b2c3d").ask("train", {})
    begin = time.monotonic()
    # Which is tried again: the cluster may be starting.
    with driver() as later, pytest.raises(StageError, match="no Ray cluster answers"):
        later.prepared()
    assert time.monotonic() - begin > 1.0
    assert any("waiting for the cluster" in line for line in lines)
