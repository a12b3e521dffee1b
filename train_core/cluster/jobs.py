"""What only Ray's own client knows about the jobs of a cluster, for callers that import no Ray.

Each function is called in a process of its own (`train_core/client/carriers/ray_jobs.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from train_core.errors import ResourceError

# These name the caller's own cluster, which may be another than the requested one.
_MISLEADING = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
_TIMEOUT_S = 10.0


def dashboard_of(address: str) -> str:
    """The URL of the dashboard of the cluster at `host:6379` or `ray://host:10001`.

    Raises ResourceError if the cluster does not tell it.
    """
    _prepare_environment()
    from ray.dashboard.utils import get_address_for_submission_client
    from ray.exceptions import RayError

    try:
        return str(get_address_for_submission_client(address)).rstrip("/")
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise ResourceError(str(error)) from error


def upload_code(dashboard: str, runtime_env: dict[str, Any]) -> dict[str, Any]:
    """The runtime environment as a cluster takes it, by Ray's own rules.

    Local folders are uploaded (without what `excludes`, .gitignore and .rayignore name), and local
    files of requirements are read. Raises ResourceError if Ray refuses it.
    """
    _prepare_environment()
    from ray.job_submission import JobSubmissionClient
    from ray.runtime_env import RuntimeEnv

    class Client(JobSubmissionClient):
        """Ray's client, with a timeout for a cluster that accepts a request and never answers."""

        def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
            return super()._do_request(method, endpoint, **{"timeout": _TIMEOUT_S} | options)

    client = Client(dashboard)
    try:
        # Ray has a public function for it only together with the submission.
        client._upload_working_dir_if_needed(runtime_env)  # noqa: SLF001
        client._upload_py_modules_if_needed(runtime_env)  # noqa: SLF001
        return dict(RuntimeEnv(**runtime_env).to_dict())
    except (ValueError, TypeError) as error:
        raise ResourceError(f"Ray does not take the runtime_env: {error}") from error


def _prepare_environment() -> None:
    """Set what Ray reads as it is imported."""
    for name in _MISLEADING:
        os.environ.pop(name, None)
    named = os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    if named or Path("~/.ray/auth_token").expanduser().exists():
        # Clusters require a token by default. Ray sends it to a named address only if this is set.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
