"""Ray Jobs: the training's driver as a job of a cluster, which outlives who asked for it."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from train_core.errors import ResourceError, StageError

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0
"""How long a dashboard that does not answer is asked again."""
_PAUSE_S = 1.0
_log = logging.getLogger("train_core.driver")


class Jobs:
    """The jobs of the cluster at `address`: `host:6379`, `http://host:8265` or `ray://host:10001`.

    Raises ResourceError if nobody answers there.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        if _has_token():
            # Clusters ask for a token by default, and Ray sends it to a named address only if
            # told, before it is imported.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            _knock(address)
            from ray.job_submission import JobSubmissionClient

            self._client = JobSubmissionClient(address)
        except (OSError, ValueError, RuntimeError) as error:
            raise ResourceError(
                f"no Ray cluster answers at ray_address {address!r}: {error}. Is it running with "
                "its dashboard, and is its token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
                "~/.ray/auth_token?"
            ) from error

    def url(self, job: str) -> str:
        """The job's page in Ray's dashboard, with its logs."""
        return f"{self._client.get_address()}/#/jobs/{job}"

    def submit(self, job: str, command: list[str], runtime_env: dict[str, Any]) -> bool:
        """Begin a job; False if there is, or was, one of that name.

        Raises ResourceError if the cluster refuses it.
        """
        try:
            self._client.submit_job(
                entrypoint=shlex.join(command), submission_id=job, runtime_env=runtime_env
            )
        except (RuntimeError, ValueError) as error:
            if self.state(job):
                return False
            raise ResourceError(f"Ray does not take the job {job}: {error}") from error
        return True

    def state(self, job: str) -> str:
        """How the job is, as Ray says it: PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED.

        Empty if there is none. Raises StageError if nobody answers for PATIENCE_S.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return str(self._client.get_job_status(job).value)
            except RuntimeError as error:
                if "404" in str(error) or "does not exist" in str(error):
                    return ""
                cause: Exception = error
            except OSError as error:
                cause = error
            if time.monotonic() > deadline:
                said = f"Ray at {self.address} has not answered for {PATIENCE_S:g} s: {cause}"
                raise StageError("driver", said) from cause
            time.sleep(_PAUSE_S)

    def is_running(self, job: str) -> bool:
        """Whether the job runs, or soon will. Raises StageError."""
        return self.state(job) in ("PENDING", "RUNNING")

    def end_of(self, job: str) -> str:
        """What Ray says of a job that ended."""
        try:
            info = self._client.get_job_info(job)
        except (OSError, RuntimeError) as error:
            return f"job {job} ended, and nothing more is known: {error}"
        return f"job {job} {info.status.value}: {info.message}"

    def follow(self, job: str, write: Callable[[str], None]) -> None:
        """Give `write` all that the job prints, until it ends or nobody answers any more."""
        written = 0

        async def follow() -> None:
            nonlocal written
            seen = 0
            async for text in self._client.tail_job_logs(job):
                # After a connection broke, it is told from its beginning.
                new = text[max(written - seen, 0) :]
                seen += len(text)
                if new:
                    written = seen
                    write(new)

        while True:
            try:
                asyncio.run(follow())
            except (OSError, RuntimeError) as error:
                _log.debug("the log of %s is not heard: %s", job, error)
            try:
                if not self.is_running(job):
                    return
            except StageError:
                return
            time.sleep(_PAUSE_S)


def _knock(address: str) -> None:
    """Raise OSError if nobody listens at the address: Ray itself would try for minutes."""
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    if parts.hostname and parts.port:
        socket.create_connection((parts.hostname, parts.port), timeout=5).close()


def _has_token() -> bool:
    named = os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    return bool(named) or Path("~/.ray/auth_token").expanduser().exists()
