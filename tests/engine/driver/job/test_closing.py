"""A caller that closes while one of its stages prepares a new job, as the last one has died."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from train_core import TrainConfig
from train_core.engine.cluster.jobs import RayJobsClient
from train_core.engine.driver.job.remote_stages import RemoteStages
from train_core.engine.driver.server import as_answer
from train_core.engine.driver.timing import TIMING
from train_core.errors import JobEndedError, StageError
from train_core.requests import DriverRequest, Prepared, Request
from train_core.storage.coordination.job_mailbox import THE_JOB, Mailbox
from train_core.storage.run_folder import RunFolder

PREPARED = as_answer(
    result=Prepared(run="run", url="", resumed=False, num_samples={}, total_steps=0).model_dump()
)

pytestmark = pytest.mark.timeout(60)


class JobsThatDie(RayJobsClient):
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

    def follow(self, job: str, write: Callable[[str], None], ended: threading.Event) -> None:
        ended.wait()


class StagesOfJobsThatDie(RemoteStages):
    """Their cluster is not there."""

    def __init__(self, request: Request, jobs: RayJobsClient) -> None:
        super().__init__(request, replace(TIMING, job_poll_interval_s=0.05, last_lines_s=5.0))
        self._jobs_that_die = jobs

    def _cluster(self) -> RayJobsClient:
        return self._jobs_that_die


def request_to_train(folder: RunFolder) -> DriverRequest:
    return DriverRequest(storage=folder.storage, run="run", config=TrainConfig(ray_address="x"))


def test_a_close_does_not_wait_for_a_job_that_is_being_submitted(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    jobs = JobsThatDie(folder)
    stages = StagesOfJobsThatDie(request_to_train(folder), jobs)
    stages.prepare()
    with pytest.raises(JobEndedError):
        stages.ask("train", {})
    with ThreadPoolExecutor(2) as pool:
        again = pool.submit(stages.ask, "train", {})
        assert jobs.entered.wait(30)
        closing = pool.submit(stages.close, "KILLED")
        try:
            closing.result(10)
        finally:
            jobs.may_go_on.set()
        with pytest.raises(StageError, match="the driver ends"):
            again.result(30)
    # Nobody calls the new job any more.
    _, job = jobs.submitted
    left = Mailbox(folder.store, job)
    assert (left.call_names(), left.heartbeats()) == ([], {})
