"""Ray Jobs: a run's driver as a job of a cluster, which outlives the process that submitted it."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from train_core.errors import ResourceError, StageError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

RETRY_BUDGET_S = 60.0
"""How long a request is retried while the cluster does not answer."""
_TIMEOUT_S = 10.0
_PAUSE_S = 1.0
_ENDED = ("STOPPED", "SUCCEEDED", "FAILED")
# These name the caller's own cluster, which may be another than the requested one.
_MISLEADING = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
_log = logging.getLogger("train_core.driver")


class RayJobsClient:
    """The jobs of the cluster at `address`: `host:6379`, `http://host:8265` or `ray://host:10001`.

    Raises ResourceError if no cluster answers there.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        for name in _MISLEADING:
            os.environ.pop(name, None)
        if _has_token():
            # Clusters require a token by default. Ray sends it to a named address only if this
            # variable is set before Ray is imported.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            _knock(address)
            self._client = _client(address)
        except _errors() as error:
            raise ResourceError(
                f"no Ray cluster answers at ray_address {address!r}: {error}. Is it running with "
                "its dashboard, and is its token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
                "~/.ray/auth_token?"
            ) from error

    def url(self, job: str) -> str:
        """The job's page in Ray's dashboard, with its logs."""
        return f"{self._client.get_address()}/#/jobs/{job}"

    def submit(self, job: str, command: list[str], runtime_env: dict[str, Any]) -> bool:
        """Submit a job; False if there is, or was, one of that name.

        Raises ResourceError if the cluster refuses it, and StageError if it does not answer.
        """

        def once() -> bool:
            try:
                # A copy: Ray replaces local folders in this mapping by their uploaded addresses.
                self._client.submit_job(
                    entrypoint=shlex.join(command),
                    submission_id=job,
                    runtime_env=deepcopy(runtime_env),
                )
            except ValueError as error:
                raise ResourceError(f"Ray does not take the job {job}: {error}") from error
            except RuntimeError as error:
                if "already exists" in str(error):
                    return False
                if _code(error) == 400:
                    raise ResourceError(f"Ray does not take the job {job}: {error}") from error
                raise
            return True

        return self._retried(once)

    def is_running(self, job: str) -> bool:
        """Whether the job runs or is about to. Raises StageError if the cluster does not answer."""
        return self._retried(lambda: not self._has_ended(job))

    def has_ended(self, job: str) -> bool | None:
        """Whether the job is over; None if the cluster does not answer."""
        try:
            return self._has_ended(job)
        except _errors() as error:
            _log.debug("the state of job %s is unknown: %s", job, error)
            return None

    def end_of(self, job: str) -> str:
        """Ray's message about a job that ended."""
        try:
            info = self._client.get_job_info(job)
        except _errors() as error:
            return f"job {job} ended, and nothing more is known: {error}"
        return f"job {job} {info.status.value}: {info.message}"

    def follow(self, job: str, write: Callable[[str], None], ended: threading.Event) -> None:
        """Call `write` with all that the job prints, until it has `ended`."""
        written = 0

        async def follow() -> None:
            nonlocal written
            seen = 0
            async for text in self._client.tail_job_logs(job):
                # After a lost connection, the log is sent from its beginning.
                new = text[max(written - seen, 0) :]
                seen += len(text)
                if new:
                    written = seen
                    write(new)

        while not ended.is_set():
            try:
                asyncio.run(follow())
            except Exception as error:  # noqa: BLE001 (aiohttp's, Ray's, the system's)
                _log.debug("the log of %s cannot be followed: %s", job, error)
            if self.has_ended(job):
                return
            ended.wait(_PAUSE_S)

    def _has_ended(self, job: str) -> bool:
        try:
            return self._client.get_job_status(job).value in _ENDED
        except RuntimeError as error:
            if _code(error) == 404:
                return True
            raise

    def _retried(self, request: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + RETRY_BUDGET_S
        while True:
            try:
                return request()
            except ResourceError:
                raise
            except _errors() as error:
                if time.monotonic() > deadline:
                    message = (
                        f"Ray at {self.address} has not answered for {RETRY_BUDGET_S:g} s: {error}"
                    )
                    raise StageError("driver", message) from error
            time.sleep(_PAUSE_S)


def _client(address: str) -> JobSubmissionClient:
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        """Ray's client, with a timeout for a cluster that accepts a request and never answers."""

        def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
            return super()._do_request(method, endpoint, **{"timeout": _TIMEOUT_S} | options)

    return Client(address)


def _errors() -> tuple[type[Exception], ...]:
    """The errors of Ray's client for a cluster that does not answer, or refuses."""
    from ray.exceptions import RayError

    return OSError, RuntimeError, ValueError, RayError


def _code(error: RuntimeError) -> int:
    """The HTTP status in what Ray's client raises; 0 if there is none."""
    code = str(error).removeprefix("Request failed with status code ").partition(":")[0]
    return int(code) if code.isdigit() else 0


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at the address: Ray itself would try for minutes."""
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    if parts.hostname and parts.port:
        socket.create_connection((parts.hostname, parts.port), timeout=5).close()


def _has_token() -> bool:
    named = os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    return bool(named) or Path("~/.ray/auth_token").expanduser().exists()
