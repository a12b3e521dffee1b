"""The stages of one request whose driver is a job of a cluster: they are asked for, and told here.

The job is named after the run and the attempt that it begins. One that drives the run already is
attached to: it goes on where it is, and what it has to tell is this caller's, too.
"""

from __future__ import annotations

import logging
import random
import string
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Self
from urllib.parse import urlsplit

from train_core.config import TrainConfig
from train_core.described_errors import rebuild
from train_core.engine.cluster.jobs import PATIENCE_S, Jobs
from train_core.entry_points import JOB
from train_core.errors import (
    ConfigError,
    EvertrainError,
    JobEndedError,
    ResourceError,
    StageError,
    StorageError,
)
from train_core.requests import DriverRequest
from train_core.storage.coordination import lease
from train_core.storage.coordination.heartbeat import HeartbeatObserver, HeartbeatSender
from train_core.storage.coordination.mailbox import (
    THE_JOB,
    Answer,
    Mailbox,
    jobs_with_calls,
)
from train_core.storage.objects.digests import digest_of
from train_core.storage.records.names import JobName
from train_core.storage.run_folder import RunFolder

_LOOK_EVERY_S = 3.0
_SILENT_S = 60.0
"""A job counts as dead when Ray says nothing of it, and its heartbeat stands still, for so long."""
_LAST_LINES_S = 1.5
"""How long the end of a job's log is waited for: Ray reads it once a second."""
_log = logging.getLogger("train_core.driver")


@dataclass(frozen=True)
class Attachment:
    """A job while it is called: heartbeats are sent to it, and its log is followed."""

    mailbox: Mailbox
    first: str
    """The name of the first call."""
    heartbeat: HeartbeatSender
    threads: list[threading.Thread]
    has_left: threading.Event

    @classmethod
    def begin(cls, mailbox: Mailbox, request: DriverRequest) -> Self:
        """Ask for the first stage, and send heartbeats from now on."""
        mailbox.send_heartbeat()
        first = mailbox.ask("prepare", {"request": request.model_dump(mode="json")})
        heartbeat = mailbox.heartbeat_sender()
        heartbeat.start()
        return cls(mailbox, first, heartbeat, [], threading.Event())

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do the work in a thread, until this one has left."""
        self.threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self.threads[-1].start()

    def leave(self) -> None:
        """Send no more heartbeats, and print the last lines of the log."""
        self.has_left.set()
        deadline = time.monotonic() + _LAST_LINES_S
        self.heartbeat.stop(_LAST_LINES_S)
        for thread in self.threads:
            thread.join(max(deadline - time.monotonic(), 0))


class JobStages:
    """What `DriverStages` is, by a job of the cluster at the request's `ray_address`."""

    def __init__(self) -> None:
        self._attached: Attachment | None = None
        self._lock = threading.Lock()

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Attach to the job that drives the run, or submit one, and have it check the request.

        Raises what the checks there raise, and ResourceError if the cluster does not take the job.
        """
        self._request = DriverRequest.model_validate(request)
        _refuse_what_cannot_travel(self._request)
        self._folder = RunFolder(self._request.storage, self._request.run)
        self._jobs = self._cluster()
        return self._prepare()

    def start_ray(self, config: TrainConfig) -> None:
        """The job does that."""

    def train(self) -> dict[str, Any]:
        """Train to the end, from the newest good checkpoint if there is one."""
        return dict(self._stage("train"))

    def evaluate(self, **arguments: Any) -> list[Any]:
        """Measure checkpoints on a split."""
        return list(self._stage("evaluate", **arguments))

    def infer(self, **arguments: Any) -> dict[str, Any]:
        """Score new data with a checkpoint."""
        return dict(self._stage("infer", **arguments))

    def publish(self, **arguments: Any) -> dict[str, Any]:
        """Draw the curves, complete the mirror and write report.json."""
        return dict(self._stage("publish", **arguments))

    def close(self, status: str) -> None:
        """End the job, in order, if nobody else needs it; what still trains saves first."""
        with self._lock:
            attached = self._attached
        # One that has ended needs no other one to end it.
        if attached is not None:
            try:
                asked = attached.mailbox.ask("close", {"status": status})
                self._result(attached.mailbox, "close", asked)
            finally:
                self._leave(attached)

    def _prepare(self) -> dict[str, Any]:
        while running := self._running():
            try:
                return self._asked_first(self._first_call(running))
            except JobEndedError:
                _log.info("job %s ended just now", running)
        for number in count(1):
            job = str(self._name(number))
            # There before the job is, which ends at once if it does not find it.
            asking = self._first_call(job)
            command = ["python", "-m", JOB]
            command += [self._request.storage, self._request.run, job, asking.first]
            try:
                is_new = self._jobs.submit(job, command, self._request.config.runtime_env)
            except EvertrainError:
                asking.leave()
                asking.mailbox.detach(asking.first)
                raise
            if is_new:
                _log.info("submitted job %s: %s", job, self._jobs.url(job))
            # Or somebody else has submitted the same just before.
            if is_new or self._runs(asking):
                return self._asked_first(asking)
            asking.leave()
            asking.mailbox.clear()
        raise AssertionError

    def _runs(self, asking: Attachment) -> bool:
        """Whether the job runs that was asked; who cannot know asks no more."""
        try:
            return self._jobs.is_running(asking.mailbox.job)
        except EvertrainError:
            asking.leave()
            raise

    def _cluster(self) -> Jobs:
        """The cluster's jobs; where one was asked for before, it may be starting again."""
        was_there = any(JobName.parse(job) for job in jobs_with_calls(self._folder.store))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return Jobs(self._request.config.ray_address)
            except ResourceError as error:
                if not was_there:
                    raise
                if time.monotonic() > deadline:
                    raise StageError("driver", str(error)) from error
                _log.warning("waiting for the cluster: %s", error)
            time.sleep(_LOOK_EVERY_S)

    def _running(self) -> str:
        """The job that drives the run; empty if none does."""
        if self._request.scores_only:
            return ""
        jobs = jobs_with_calls(self._folder.store)
        return next((j for j in jobs if JobName.parse(j) and self._jobs.is_running(j)), "")

    def _name(self, number: int) -> JobName | str:
        """What a new job is called; `number` counts those of that name that have ended."""
        if self._request.scores_only:
            return (
                f"{self._folder.name}-score-{''.join(random.choices(string.ascii_lowercase, k=8))}"
            )
        # Other storages may have a run of that name.
        where = digest_of(self._folder.url.encode())[:8]
        attempt = lease.newest_attempt(self._folder.store) + 1
        return JobName(self._folder.name, attempt, where, number)

    def _first_call(self, job: str) -> Attachment:
        # The environment's variables, which may be secrets, are the job's by Ray's own way.
        config = self._request.config.without_secrets()
        request = self._request.model_copy(
            update={"config": config, "job_url": self._jobs.url(job)}
        )
        return Attachment.begin(Mailbox(self._folder.store, job), request)

    def _asked_first(self, asking: Attachment) -> dict[str, Any]:
        asking.start(self._jobs.follow, asking.mailbox.job, _print, asking.has_left)
        self._attached = asking
        try:
            return dict(self._result(asking.mailbox, "prepare", asking.first))
        except BaseException:
            # A job whose request is refused ends by itself.
            self._leave(asking)
            raise

    def _stage(self, stage: str, **arguments: Any) -> Any:
        """What the job says; raises what it raised, and JobEndedError if it died."""
        with self._lock:
            if self._attached is None:
                # The last one died: this is another try.
                self._prepare()
            attached = self._attached
        assert attached is not None
        name = attached.mailbox.ask(stage, arguments)
        try:
            return self._result(attached.mailbox, stage, name)
        except JobEndedError:
            with self._lock:
                self._leave(attached)
            raise

    def _result(self, mailbox: Mailbox, stage: str, name: str) -> Any:
        try:
            answer = self._answer(mailbox, stage, name)
        except JobEndedError:
            if self._request.scores_only:
                # Nobody comes after it; what drives the run next clears the calls of those before.
                with suppress(StorageError):
                    mailbox.clear()
            raise
        if answer.error is not None:
            raise rebuild(answer.error)
        return answer.result

    def _answer(self, mailbox: Mailbox, stage: str, name: str) -> Answer:
        job, has_ended = mailbox.job, False
        asked_at = looked_at = time.monotonic()
        heartbeat = HeartbeatObserver(0, asked_at)
        while True:
            try:
                if answer := mailbox.answer_to(name):
                    return answer
                if has_ended:
                    mailbox.cancel(name)
                    raise JobEndedError(stage, self._jobs.end_of(job))
                if time.monotonic() - looked_at > _LOOK_EVERY_S:
                    found, counter = self._jobs.has_ended(job), mailbox.heartbeat_of(THE_JOB)
                    heartbeat.observe(counter, time.monotonic())
                    if found is False:
                        heartbeat.restart(time.monotonic())
                    # Its last answer may have come just before.
                    has_ended = bool(found) or heartbeat.still_s(time.monotonic()) > _SILENT_S
                    looked_at = time.monotonic()
            except StorageError as error:
                if has_ended:
                    raise JobEndedError(stage, self._jobs.end_of(job)) from error
                _log.warning("it is unknown whether %s is done: %s", stage, error)
                # Its heartbeat cannot be read, but Ray may know.
                has_ended = bool(self._jobs.has_ended(job))
                heartbeat.restart(time.monotonic())
            time.sleep(mailbox.timing.pause_s(time.monotonic() - asked_at))

    def _leave(self, attached: Attachment) -> None:
        if self._attached is attached:
            self._attached = None
        attached.leave()


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


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
