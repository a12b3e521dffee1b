"""Small jobs that need torch or MLflow, each done in a process of its own.

Like the driver, a door for programs that import neither themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from train_core.errors import ConfigError


def settings_schema(workload: str) -> dict[str, Any]:
    """The JSON schema of a workload's settings. Raises ConfigError if there is no such workload."""
    found: dict[str, Any] = json.loads(_run("settings_schema", workload))
    return found


def delete_tracking(run_url: str, tracking_uri: str) -> None:
    """Delete the MLflow side of the run whose folder is at `run_url`. Raises ConfigError."""
    _run("delete_tracking", run_url, tracking_uri)


def unregistered_checkpoints(run_url: str, tracking_uri: str) -> list[str]:
    """The run's checkpoints whose model MLflow has and no registered version points to.

    Raises ConfigError if MLflow cannot be asked.
    """
    found: list[str] = json.loads(_run("unregistered_checkpoints", run_url, tracking_uri))
    return found


def _run(errand: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "train_core.engine.errands", errand, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(lines[-1] if lines else f"{errand} ended with code {done.returncode}")
    return done.stdout
