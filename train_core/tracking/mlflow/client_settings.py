"""The settings of MLflow's client: environment variables, which it reads at every request."""

from __future__ import annotations

import os
from dataclasses import dataclass

_EVERYWHERE = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_applied: dict[str, str] = {}


@dataclass(frozen=True)
class ClientSettings:
    """How often MLflow's client repeats a request, and how long it waits for each answer."""

    max_retries: int
    request_timeout_s: int = 30

    def apply(self) -> None:
        """Apply the settings to the client of this process; the user's variables take precedence.

        Call it before MLflow is imported: MLflow reads some of the variables at its import.
        """
        own = {
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(self.max_retries),
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(self.request_timeout_s),
        }
        for name, value in (_EVERYWHERE | own).items():
            # A value that was applied earlier is replaced; a value of the user's is kept.
            if os.environ.get(name, _applied.get(name)) == _applied.get(name):
                os.environ[name] = _applied[name] = value


REPEATED_BY_CALLER = ClientSettings(max_retries=0)
"""For the mirror, and for stages that are tried again: the caller repeats what failed."""
ONE_QUESTION = ClientSettings(max_retries=1)
"""For a command that fails if MLflow does not answer; MLflow's own retries take minutes."""
