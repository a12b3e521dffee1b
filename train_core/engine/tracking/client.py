"""How MLflow's client is set up."""

from __future__ import annotations

import os

_ENVIRONMENT = {
    # A request that fails is repeated by the mirror, which knows what was sent.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def set_environment() -> None:
    """How MLflow's client shall behave in this process, unless the user's environment says it."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
