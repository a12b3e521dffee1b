"""Ray Jobs: a run's driver as a job of a cluster, which outlives the process that submitted it.

The cluster is asked by its REST API, without Ray: a flow imports no Ray. What only Ray's own client
knows is asked in a process of its own (`cluster/jobs.py`).
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from train_core.client.isolated import isolated_call
from train_core.entry_points import DASHBOARD_OF, UPLOAD_CODE
from train_core.errors import EvertrainError, ResourceError, StageError, StorageError
from train_core.storage.objects.retry_policy import RetryPolicy, retried

RETRY_BUDGET_S = 60.0
"""How long a request is retried while the cluster does not answer."""
_TIMEOUT_S = 10.0
_KNOCK_S = 5.0
_PAUSE_S = 1.0
_GLANCE_S = 0.5
"""Between two looks whether the log is still wanted."""
_RETRIES = RetryPolicy(budget_s=RETRY_BUDGET_S, longest_pause_s=_PAUSE_S)
_ENDED = ("STOPPED", "SUCCEEDED", "FAILED")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_T = TypeVar("_T")
_log = logging.getLogger("train_core.driver")
# It logs each request, with the whole address: several a minute for as long as a job runs.
logging.getLogger("httpx").setLevel(logging.WARNING)


class _NoAnswerError(ConnectionError):
    """The cluster does not answer, or has an error of its own: this may pass."""


class _JobInfo(BaseModel):
    """What Ray knows of a job, as far as it is read here."""

    status: str
    message: str | None = None


class RayJobs:
    """The jobs of the cluster at `address`: `host:6379`, `http://host:8265` or `ray://host:10001`.

    Raises ResourceError if no cluster answers there.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            self._dashboard = _dashboard_of(address)
            self._headers = _login()
            self._client = httpx.Client(
                base_url=self._dashboard,
                headers=self._headers,
                timeout=_TIMEOUT_S,
                follow_redirects=True,
                # Asked every few seconds: no connection is kept that might break meanwhile.
                limits=httpx.Limits(max_keepalive_connections=0),
                # This machine asks itself directly, as in `train_core.proxies`.
                mounts={f"all://{_in_url(host)}": None for host in _LOOPBACK},
            )
            answer = self._ask("GET", "/api/version")
            if answer.status_code != httpx.codes.OK:
                raise ResourceError(_described(answer))
        # ImportError: of a SOCKS proxy, for which another library is needed.
        except (OSError, ValueError, ImportError, EvertrainError, httpx.InvalidURL) as error:
            raise ResourceError(
                f"no Ray cluster answers at ray_address {address!r}: {error}. Is it running with "
                "its dashboard, and is its token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
                "~/.ray/auth_token?"
            ) from error

    def url(self, job: str) -> str:
        """The job's page in Ray's dashboard, with its logs."""
        return f"{self._dashboard}/#/jobs/{job}"

    def submit(self, job: str, command: list[str], runtime_env: dict[str, Any]) -> bool:
        """Submit a job; False if there is, or was, one of that name.

        Raises ResourceError if the cluster refuses it, and StageError if it does not answer.
        """

        def once() -> bool:
            asked = {
                "entrypoint": shlex.join(command),
                "submission_id": job,
                "runtime_env": self._as_ray_reads_it(runtime_env) if runtime_env else {},
            }
            answer = self._ask("POST", "/api/jobs/", json=asked)
            if answer.status_code == httpx.codes.OK:
                return True
            if answer.is_client_error:
                raise ResourceError(f"Ray does not take the job {job}: {_described(answer)}")
            # One whose name is taken is answered as an error of the cluster's.
            if self._ask("GET", f"/api/jobs/{job}").status_code == httpx.codes.OK:
                return False
            raise _NoAnswerError(_described(answer))

        return self._retried(once)

    def is_running(self, job: str) -> bool:
        """Whether the job runs or is about to. Raises StageError if the cluster does not answer."""
        return self._retried(lambda: not self._has_ended(job))

    def has_ended(self, job: str) -> bool | None:
        """Whether the job is over; None if the cluster does not answer."""
        try:
            return self._has_ended(job)
        except _NoAnswerError as error:
            _log.debug("the state of job %s is unknown: %s", job, error)
            return None

    def end_of(self, job: str) -> str:
        """Ray's message about a job that ended."""
        try:
            info = self._info(job)
        except _NoAnswerError as error:
            return f"job {job} ended, and nothing more is known: {error}"
        if info is None:
            return f"job {job} ended, and Ray does not know it any more"
        return f"job {job} {info.status}: {info.message}"

    def follow(self, job: str, write: Callable[[str], None], stop: threading.Event) -> None:
        """Call `write` with all that the job prints, until it has ended, or `stop` is set."""
        written = 0
        while not stop.is_set():
            seen = 0
            try:
                with self._log_of(job) as stream:
                    while not stop.is_set():
                        try:
                            text = stream.recv(_GLANCE_S)
                        except TimeoutError:
                            continue
                        # After a lost connection, the log is sent from its beginning.
                        new = str(text)[max(written - seen, 0) :]
                        seen += len(text)
                        if new:
                            written = seen
                            write(new)
            except (OSError, EOFError, ImportError, WebSocketException) as error:
                _log.debug("the log of %s is not followed any more: %s", job, error)
            if self.has_ended(job):
                return
            stop.wait(_PAUSE_S)

    def _log_of(self, job: str) -> Any:
        return connect(
            f"{self._dashboard.replace('http', 'ws', 1)}/api/jobs/{job}/logs/tail",
            additional_headers=self._headers,
            open_timeout=_TIMEOUT_S,
            close_timeout=_GLANCE_S,
            max_size=None,
            # The dashboard passes what it gets on to the process behind it: it would lose what that
            # compresses, and reads nothing itself that it could answer a ping to.
            compression=None,
            ping_interval=None,
            proxy=None if urlsplit(self._dashboard).hostname in _LOOPBACK else True,
        )

    def _has_ended(self, job: str) -> bool:
        info = self._info(job)
        return info is None or info.status in _ENDED

    def _info(self, job: str) -> _JobInfo | None:
        """What Ray knows of the job; None if there is none of that name."""
        answer = self._ask("GET", f"/api/jobs/{job}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.status_code != httpx.codes.OK:
            raise _NoAnswerError(_described(answer))
        try:
            return _JobInfo.model_validate_json(answer.content)
        except ValidationError as error:
            raise _NoAnswerError(f"no answer of Ray's: {error}") from error

    def _as_ray_reads_it(self, runtime_env: dict[str, Any]) -> dict[str, Any]:
        """With its local folders uploaded, and its local files of requirements read."""
        try:
            asked = {"dashboard": self._dashboard, "runtime_env": runtime_env}
            return dict(isolated_call(UPLOAD_CODE, **asked))
        except StageError as error:
            raise _NoAnswerError(str(error)) from error

    def _ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **content)
        except httpx.RequestError as error:
            raise _NoAnswerError(f"{type(error).__name__}: {error}") from error

    def _retried(self, request: Callable[[], _T]) -> _T:
        try:
            return retried(lambda _: request(), f"Ray at {self.address}", _RETRIES)
        except StorageError as error:
            raise StageError("driver", str(error)) from error


def _dashboard_of(address: str) -> str:
    """The URL of the cluster's dashboard, which serves its REST API."""
    # Ray itself would try for minutes to reach what is not there.
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    if parts.hostname and parts.port:
        socket.create_connection((parts.hostname, parts.port), timeout=_KNOCK_S).close()
    if parts.scheme in ("http", "https"):
        return address.rstrip("/")
    return str(isolated_call(DASHBOARD_OF, address=address))


def _login() -> dict[str, str]:
    """The header with the cluster's token, if this machine has one. Clusters ask for it."""
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return {}
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    if not token:
        named = os.environ.get("RAY_AUTH_TOKEN_PATH")
        file = Path(named or "~/.ray/auth_token").expanduser()
        token = file.read_text() if named or file.exists() else ""
    return {"Authorization": f"Bearer {token.strip()}"} if token.strip() else {}


def _described(answer: httpx.Response) -> str:
    return f"HTTP {answer.status_code}: {answer.text.strip() or answer.reason_phrase}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
