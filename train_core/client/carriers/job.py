"""Carries calls to a driver that is a job of a cluster, by the mailbox in the run folder.

The job is named after the run and the attempt that it begins. One that drives the run already is
attached to: it goes on where it is, and its results are this caller's, too. docs/design/attach.md
has the whole way of a call; the job's side is `driver/job`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from train_core.client.carriers.attachment import Attachment, Say
from train_core.client.carriers.job_of_request import JobChoice, JobOfRun, JobOfScoring
from train_core.client.carriers.ray_jobs import RayJobs
from train_core.entry_points import JOB
from train_core.errors import (
    ConfigError,
    JobEndedError,
    ResourceError,
    StageError,
)
from train_core.requests import DriverRequest, Request, ScoringRequest
from train_core.search_path import VARIABLE
from train_core.stages import CLOSE, PREPARE, ArgumentsT, ResultT, Stage
from train_core.storage.coordination.job_mailbox import jobs_with_calls
from train_core.storage.records.names import JobName
from train_core.storage.run_folder import RunFolder
from train_core.text.log_lines import WARNING
from train_core.text.shown_text import without_secrets
from train_core.timing import TIMING, Timing


class JobCarrier:
    """Carries the calls of one request to one job of the cluster at its `ray_address`.

    With `prepare`, the first call, it attaches to the job that drives the run, or submits one. It
    serves for that job only: a job that follows it has a carrier of its own.
    """

    def __init__(self, request: Request, on_log: Say, timing: Timing = TIMING) -> None:
        self._request = request
        self._on_log = on_log
        self._timing = timing
        self._folder = RunFolder(request.storage, request.run)
        is_scoring = isinstance(request, ScoringRequest)
        self._choice: JobChoice = (JobOfScoring if is_scoring else JobOfRun)(self._folder)
        self._attached: Attachment | None = None
        self._lock = threading.Lock()
        """Guards `_attached`, and is held for no longer than that: `close` needs it at any time."""
        self._is_closing = threading.Event()
        self._has_ended = threading.Event()
        self._calls: list[Future[Any]] = []
        """All calls of this carrier; the first is `prepare`, for which the others wait."""

    @property
    def is_alive(self) -> bool:
        """Whether it may still be asked: its job has not died, and nobody has ended it."""
        return not self._has_ended.is_set()

    def call(self, stage: Stage[ArgumentsT, ResultT], arguments: ArgumentsT) -> Future[ResultT]:
        """The result of a stage by the job.

        It raises what the stage raises, JobEndedError if the job dies, and StageError once this is
        ended. `prepare` raises ResourceError if the cluster does not take the job.
        """
        if stage.name == CLOSE.name:
            # What is still being prepared ends.
            with self._lock:
                self._is_closing.set()
        work = self._prepare if stage.name == PREPARE.name else self._ask
        end = _in_thread(partial(work, stage, arguments))
        self._calls.append(end)
        return end

    def end(self, timeout_s: float = 0) -> None:
        """Detach from the job, which goes on unless it was closed; the last lines are waited for.

        Who waits for an answer gets a StageError.
        """
        self._end(waits=True)
        # They are about to end: what they took last is theirs.
        wait(self._calls, self._timing.callers.last_lines_s)
        self._fail_calls()

    def kill(self) -> None:
        """Detach from the job at once."""
        self._end(waits=False)
        self._fail_calls()

    def _fail_calls(self) -> None:
        """Let nobody wait any longer, as for a cluster that does not answer."""
        for call in self._calls:
            with suppress(InvalidStateError):
                call.set_exception(StageError("driver", "the driver ends: it waits for no job"))

    def _end(self, *, waits: bool) -> None:
        with self._lock:
            self._is_closing.set()
            attached, self._attached = self._attached, None
        if attached is not None:
            attached.detach(waits=waits)
            attached.abandon()
        self._has_ended.set()

    def _ask(self, stage: Stage[ArgumentsT, ResultT], arguments: ArgumentsT) -> ResultT:
        if stage.name != CLOSE.name:
            wait(self._calls[:1])
        with self._lock:
            attached = self._attached
        if attached is None:
            if stage.name == CLOSE.name:
                return stage.answer().unwrapped()
            raise StageError(
                stage.name, f"no job carries out run {self._folder.name!r} for this caller"
            )
        try:
            return attached.ask(stage, arguments)
        except JobEndedError:
            # Others that wait for it find that by themselves.
            self._has_ended.set()
            self._drop(attached)
            raise

    def _drop(self, attached: Attachment) -> None:
        """Detach from a job that has died."""
        with self._lock:
            if self._attached is attached:
                self._attached = None
        attached.detach()
        self._choice.clear_dead(attached.mailbox)

    def _prepare(self, stage: Stage[ArgumentsT, ResultT], _: ArgumentsT) -> ResultT:
        # The request is this mailbox's own: each job that is tried gets it with its own page in it.
        try:
            if isinstance(self._request, DriverRequest):
                _refuse_what_cannot_travel(self._request)
            return self._prepared(stage, self._cluster())
        except BaseException:
            # A job whose request is refused ends by itself.
            self._end(waits=True)
            raise

    def _prepared(self, stage: Stage[ArgumentsT, ResultT], jobs: RayJobs) -> ResultT:
        while running := self._choice.running(jobs):
            try:
                return self._first_answer(stage, self._first_call(jobs, running))
            except JobEndedError:
                self._say(f"job {running} ended just now")
        for job in self._choice.new_names():
            # IMPORTANT: the call is written before its job is submitted. A job that does not find
            # its call within `first_call_wait_s` ends.
            asking = self._first_call(jobs, job)
            if self._submit(jobs, asking):
                return self._first_answer(stage, asking)
            asking.detach()
            asking.mailbox.clear()
        raise AssertionError

    def _first_call(self, jobs: RayJobs, job: str) -> Attachment:
        # The environment's variables, which may be secrets, are the job's by Ray's own way.
        config = self._request.config.without_secrets()
        request = self._request.model_copy(update={"config": config, "job_url": jobs.url(job)})
        asking = Attachment(self._folder.store, job, jobs, self._say, self._timing)
        asking.prepare(request)
        return asking

    def _submit(self, jobs: RayJobs, asking: Attachment) -> bool:
        """Whether the job that is asked runs now: this caller's, or another one's of that name."""
        job = asking.mailbox.job
        asked = self._request.config.model_dump(mode="json", include={"runtime_env"})
        command = ["python", "-P", "-m", JOB]
        command += [self._request.storage, self._request.run, job, asking.first]
        try:
            self._check_closing()
            is_new = jobs.submit(job, command, _with_search_path(asked["runtime_env"]))
        except BaseException:
            asking.cancel()
            raise
        if is_new:
            self._say(f"submitted job {job}: {jobs.url(job)}")
            return True
        # Somebody else has submitted the same just before.
        try:
            return jobs.is_running(job)
        except BaseException:
            asking.detach()
            raise

    def _first_answer(self, stage: Stage[ArgumentsT, ResultT], asking: Attachment) -> ResultT:
        asking.follow_log()
        try:
            with self._lock:
                self._check_closing()
                self._attached = asking
        except StageError:
            # `close` did not find it: nobody else would end what was asked for.
            asking.cancel()
            raise
        try:
            return asking.result(stage, asking.first)
        except JobEndedError:
            self._drop(asking)
            raise

    def _cluster(self) -> RayJobs:
        """The cluster's jobs; where one was asked for before, it may be starting again."""
        was_there = any(JobName.parse(job) for job in jobs_with_calls(self._folder.store))
        deadline = time.monotonic() + self._timing.callers.cluster_wait_s
        while True:
            self._check_closing()
            try:
                return RayJobs(self._request.config.ray_address)
            except ResourceError as error:
                if not was_there:
                    raise
                if time.monotonic() > deadline:
                    raise StageError("driver", str(error)) from error
                self._say(f"{WARNING}waiting for the cluster: {error}")
            self._is_closing.wait(self._timing.callers.job_poll_interval_s)

    def _say(self, line: str) -> None:
        self._on_log(without_secrets(line))

    def _check_closing(self) -> None:
        """Raise StageError if it was closed, or ended."""
        if self._is_closing.is_set():
            raise StageError("driver", "the driver ends: it asks no job for anything more")


def _in_thread(work: Callable[[], ResultT]) -> Future[ResultT]:
    """The end of the work, in a thread that no end of the program waits for."""
    end: Future[ResultT] = Future()

    def run() -> None:
        # Whoever ended the mailbox meanwhile has answered.
        with suppress(InvalidStateError):
            try:
                end.set_result(work())
            except InvalidStateError:
                raise
            except BaseException as error:  # noqa: BLE001 (who waits for the result raises it)
                end.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return end


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
