"""The stages of one request whose driver is a job of a cluster: they are asked for, and told here.

The job is named after the run and the attempt that it begins. One that drives the run already is
attached to: it goes on where it is, and what it has to tell is this caller's, too.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from train_core.driver import DriverRequest, rebuild
from train_core.engine.jobs import Jobs
from train_core.errors import ConfigError, StageError, StorageError
from train_core.storage import calls, lease
from train_core.storage.calls import Answer, Calls
from train_core.storage.digests import digest_of
from train_core.storage.run_folder import RunFolder

_FIRST_PAUSE_S, _PAUSE_S = 0.1, 1.0
_LOOK_EVERY_S = 3.0
_LAST_LINES_S = 3.0
_log = logging.getLogger("train_core.driver")


class JobEndedError(StageError):
    """The job ended and owes an answer."""


class JobStages:
    """What `DriverStages` is, by a job of the cluster at the request's `ray_address`."""

    def __init__(self) -> None:
        self._calls: Calls | None = None
        self._following: threading.Thread | None = None

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Attach to the job that drives the run, or submit one, and have it check the request.

        Raises what the checks there raise, and ResourceError if the cluster does not take the job.
        """
        self._request = DriverRequest.model_validate(request)
        _refuse_what_cannot_travel(self._request)
        self._folder = RunFolder(self._request.storage, self._request.run)
        self._jobs = Jobs(self._request.config.ray_address)
        while running := self._running():
            try:
                return self._prepare_in(running)
            except JobEndedError:
                _log.info("job %s ended just now", running)
        return self._prepare_in(self._submitted())

    def start_ray(self) -> None:
        """The job does that."""

    def train(self) -> dict[str, Any]:
        """Train to the end, from the newest good checkpoint if there is one."""
        return dict(self._call("train"))

    def evaluate(self, **arguments: Any) -> list[Any]:
        """Measure checkpoints on a split."""
        return list(self._call("evaluate", **arguments))

    def infer(self, **arguments: Any) -> dict[str, Any]:
        """Score new data with a checkpoint."""
        return dict(self._call("infer", **arguments))

    def publish(self, **arguments: Any) -> dict[str, Any]:
        """Draw the curves, complete the mirror and write report.json."""
        return dict(self._call("publish", **arguments))

    def close(self, status: str) -> None:
        """End the job, in order; a training that still runs saves first."""
        if self._calls is not None:
            self._call("close", status=status)
            assert self._following is not None
            self._following.join(_LAST_LINES_S)

    def _running(self) -> str:
        """The job that drives the run; empty if none does."""
        if self._request.scores_only:
            return ""
        for job in calls.jobs(self._folder.store):
            if self._jobs.is_running(job):
                return job
            # It died before it could clear them away.
            Calls(self._folder.store, job).clear()
        return ""

    def _submitted(self) -> str:
        """A new job; or the one that somebody else submitted at the same time."""
        store = self._folder.store
        # Other storages may have a run of that name.
        where = digest_of(self._folder.url.encode())[:8]
        attempt = 0 if self._request.scores_only else lease.newest_attempt(store) + 1
        for number in itertools.count(1):
            job = f"{self._folder.name}-a{attempt:04d}-{where}"
            job += f"-{number}" if number > 1 else ""
            command = [
                *("python", "-m", "train_core.engine.job_process"),
                *(self._request.storage, self._request.run, job),
            ]
            if self._jobs.submit(job, command, self._request.config.runtime_env):
                _log.info("submitted job %s: %s", job, self._jobs.url(job))
                return job
            if attempt and self._jobs.is_running(job):
                return job
        raise AssertionError

    def _prepare_in(self, job: str) -> dict[str, Any]:
        asked = self._request.model_copy(update={"job_url": self._jobs.url(job)})
        self._calls = Calls(self._folder.store, job)
        self._following = threading.Thread(target=self._follow, args=(job,), daemon=True)
        self._following.start()
        try:
            return dict(self._call("prepare", request=asked.model_dump(mode="json")))
        except BaseException:
            # A job whose request is refused ends by itself.
            self._calls = None
            raise

    def _call(self, stage: str, **arguments: Any) -> Any:
        """What the job answers; raises what it raised, and JobEndedError if it died."""
        assert self._calls is not None
        name = self._calls.ask(stage, arguments)
        answer = self._answer(stage, name)
        if answer.error is not None:
            raise rebuild(answer.error)
        return answer.result

    def _answer(self, stage: str, name: str) -> Answer:
        assert self._calls is not None
        pause_s, looked_at = _FIRST_PAUSE_S, time.monotonic()
        has_ended = False
        while True:
            try:
                if answer := self._calls.answer_to(name):
                    return answer
            except StorageError as error:
                _log.warning("whether %s is done is not known: %s", stage, error)
            if has_ended:
                raise JobEndedError(stage, self._jobs.end_of(self._calls.job))
            if time.monotonic() - looked_at > _LOOK_EVERY_S:
                looked_at = time.monotonic()
                # Its last answer may have come just before.
                has_ended = not self._jobs.is_running(self._calls.job)
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S)

    def _follow(self, job: str) -> None:
        def write(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        self._jobs.follow(job, write)


def _refuse_what_cannot_travel(request: DriverRequest) -> None:
    """Raise ConfigError for a tracking address that means nothing, or too much, elsewhere."""
    tracking, storage = urlsplit(request.tracking_uri), urlsplit(request.storage)
    if tracking.password:
        raise ConfigError(
            "the login in MLFLOW_TRACKING_URI would have to be written down for the cluster: set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD on its nodes instead"
        )
    is_elsewhere = storage.scheme not in ("", "file")
    if request.tracking_uri and is_elsewhere and not tracking.scheme.startswith("http"):
        raise ConfigError(
            f"tracking_uri {request.tracking_uri!r} is a place of this machine, and the training "
            f"runs on the cluster at {request.config.ray_address!r}: name an MLflow server "
            "(http…), or '' for none"
        )
