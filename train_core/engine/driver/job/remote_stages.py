"""The stages of one request whose driver is a job of a cluster: the job is asked for each.

The job is named after the run and the attempt that it begins. One that drives the run already is
attached to: it goes on where it is, and its results are this caller's, too. `job/__init__.py` has
the whole way of a call.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from train_core.engine.cluster.jobs import RayJobsClient
from train_core.engine.driver.job.attachment import Attachment
from train_core.engine.driver.job.job_of_request import JobChoice, JobOfRun, JobOfScoring
from train_core.engine.driver.server import CLOSE, PREPARE
from train_core.engine.driver.timing import TIMING, Timing
from train_core.entry_points import JOB
from train_core.errors import (
    ConfigError,
    EvertrainError,
    JobEndedError,
    ResourceError,
    StageError,
)
from train_core.requests import DriverRequest, Request, ScoringRequest
from train_core.search_path import VARIABLE
from train_core.storage.coordination.job_mailbox import Mailbox, jobs_with_calls
from train_core.storage.records.names import JobName
from train_core.storage.run_folder import RunFolder

_log = logging.getLogger("train_core.driver")


class RemoteStages:
    """The stages of a request, by a job of the cluster at its `ray_address`."""

    def __init__(self, request: Request, timing: Timing = TIMING) -> None:
        self._request = request
        self._timing = timing
        self._folder = RunFolder(request.storage, request.run)
        is_scoring = isinstance(request, ScoringRequest)
        self._choice: JobChoice = (JobOfScoring if is_scoring else JobOfRun)(self._folder)
        self._jobs: RayJobsClient | None = None
        self._attached: Attachment | None = None
        self._is_closing = False
        self._lock = threading.Lock()
        """Guards the two, and is held for no longer than that: `close` needs it at any time."""
        self._preparing = threading.Lock()

    def prepare(self) -> dict[str, Any]:
        """Attach to the job that drives the run, or submit one, and have it check the request.

        Raises what the checks there raise, and ResourceError if the cluster does not take the job.
        """
        if isinstance(self._request, DriverRequest):
            _refuse_what_cannot_travel(self._request)
        self._jobs = self._cluster()
        return self._prepare(self._jobs)

    def ask(self, stage: str, arguments: dict[str, Any]) -> Any:
        """The job's result; raises what it raised, and JobEndedError if it died."""
        attached = self._attachment(stage)
        name = attached.mailbox.ask(stage, arguments)
        try:
            return self._waited(attached, stage, name)
        except JobEndedError:
            self._detach(attached)
            raise

    def failed(self, message: str) -> None:
        """The job itself notes it."""

    def close(self, status: str) -> None:
        """End the job, in order, if nobody else needs it; what still trains saves first."""
        with self._lock:
            self._is_closing = True
            attached = self._attached
        # One that has ended needs no other one to end it.
        if attached is not None:
            try:
                self._waited(attached, CLOSE, attached.mailbox.ask(CLOSE, {"status": status}))
            finally:
                self._detach(attached)

    def _prepare(self, jobs: RayJobsClient) -> dict[str, Any]:
        while running := self._choice.running(jobs):
            try:
                return self._prepared(self._first_call(jobs, running))
            except JobEndedError:
                _log.info("job %s ended just now", running)
        for job in self._choice.new_names():
            # IMPORTANT: the call is written before its job is submitted. A job that does not find
            # its call within `first_call_wait_s` ends.
            asking = self._first_call(jobs, job)
            if self._submit(jobs, asking):
                return self._prepared(asking)
            asking.detach()
            asking.mailbox.clear()
        raise AssertionError

    def _submit(self, jobs: RayJobsClient, asking: Attachment) -> bool:
        """Whether the job that is asked runs now: this caller's, or another one's of that name."""
        job = asking.mailbox.job
        command = ["python", "-P", "-m", JOB]
        command += [self._request.storage, self._request.run, job, asking.first]
        try:
            with self._lock:
                self._check_closing()
            is_new = jobs.submit(job, command, _with_search_path(self._request.config.runtime_env))
        except EvertrainError:
            asking.cancel()
            raise
        if is_new:
            _log.info("submitted job %s: %s", job, jobs.url(job))
            return True
        # Somebody else has submitted the same just before.
        try:
            return jobs.is_running(job)
        except EvertrainError:
            asking.detach()
            raise

    def _cluster(self) -> RayJobsClient:
        """The cluster's jobs; where one was asked for before, it may be starting again."""
        was_there = any(JobName.parse(job) for job in jobs_with_calls(self._folder.store))
        deadline = time.monotonic() + self._timing.cluster_wait_s
        while True:
            try:
                return RayJobsClient(self._request.config.ray_address)
            except ResourceError as error:
                if not was_there:
                    raise
                if time.monotonic() > deadline:
                    raise StageError("driver", str(error)) from error
                _log.warning("waiting for the cluster: %s", error)
            time.sleep(self._timing.job_poll_interval_s)

    def _first_call(self, jobs: RayJobsClient, job: str) -> Attachment:
        # The environment's variables, which may be secrets, are the job's by Ray's own way.
        config = self._request.config.without_secrets()
        request = self._request.model_copy(update={"config": config, "job_url": jobs.url(job)})
        mailbox = Mailbox(self._folder.store, job, timing=self._timing.coordination)
        return Attachment(mailbox, jobs, request, self._timing)

    def _prepared(self, asking: Attachment) -> dict[str, Any]:
        asking.print_log()
        try:
            with self._lock:
                self._check_closing()
                self._attached = asking
        except StageError:
            # `close` did not find it: nobody else would end what was asked for.
            asking.cancel()
            raise
        try:
            return dict(self._waited(asking, PREPARE, asking.first))
        except BaseException:
            # A job whose request is refused ends by itself.
            self._detach(asking)
            raise

    def _attachment(self, stage: str) -> Attachment:
        """The attachment to the job; where that has died, to a new one, as this is another try."""
        # Of several stages, one prepares the new job for all.
        with self._preparing:
            while True:
                with self._lock:
                    self._check_closing()
                    if self._attached is not None:
                        return self._attached
                if self._jobs is None:
                    raise StageError(stage, f"run {self._folder.name!r} was not prepared")
                self._prepare(self._jobs)

    def _check_closing(self) -> None:
        """Raise StageError if `close` was called. The caller has the lock."""
        if self._is_closing:
            raise StageError("driver", "the driver ends: it asks no job for anything more")

    def _waited(self, attached: Attachment, stage: str, name: str) -> Any:
        try:
            return attached.result(stage, name)
        except JobEndedError:
            self._choice.clear_dead(attached.mailbox)
            raise

    def _detach(self, attached: Attachment) -> None:
        with self._lock:
            if self._attached is attached:
                self._attached = None
        attached.detach()


def _with_search_path(runtime_env: dict[str, Any]) -> dict[str, Any]:
    """The runtime environment, in which Ray's PYTHONPATH for the code that it brings comes last."""
    if not runtime_env:
        return {}
    # As on the node; Ray puts in what the node has, or nothing.
    own = {VARIABLE: f"${{{VARIABLE}}}"}
    return {**runtime_env, "env_vars": own | dict(runtime_env.get("env_vars") or {})}


def _refuse_what_cannot_travel(request: DriverRequest) -> None:
    """Raise ConfigError for a tracking address that means nothing, or too much, elsewhere."""
    tracking, storage = urlsplit(request.tracking_uri), urlsplit(request.storage)
    if tracking.password:
        raise ConfigError(
            "the login in MLFLOW_TRACKING_URI would have to be stored for the cluster: set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD on its nodes instead"
        )
    is_here = tracking.scheme in ("", "file", "sqlite")
    if request.tracking_uri and is_here and storage.scheme not in ("", "file"):
        raise ConfigError(
            f"tracking_uri {request.tracking_uri!r} is an address on this machine; the training "
            f"runs on the cluster at {request.config.ray_address!r}: name an MLflow server "
            "(http…), or '' for none"
        )
