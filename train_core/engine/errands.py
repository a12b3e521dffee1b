"""The other side of `train_core.errands`: `python -m train_core.engine.errands ERRAND ARGUMENTS`.

The result goes to stdout; an error's message is the last line of stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from train_core.errors import EvertrainError


def settings_schema(workload: str) -> None:
    """Print the JSON schema of a workload's settings."""
    from train_core.workload import workload_class

    sys.stdout.write(json.dumps(workload_class(workload).Settings.model_json_schema()))


def delete_tracking(run_url: str, tracking_uri: str) -> None:
    """Delete the MLflow runs and models that mirror the run at `run_url`."""
    from train_core.engine.mlflow_runs import delete_runs

    delete_runs(run_url, tracking_uri)


def unregistered_checkpoints(run_url: str, tracking_uri: str) -> None:
    """Print the checkpoints whose models in MLflow no registered version points to."""
    # MLflow's own patience with a server that is down is minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    from train_core.engine.registry import unregistered_checkpoints

    sys.stdout.write(json.dumps(unregistered_checkpoints(run_url, tracking_uri)))


ERRANDS: dict[str, Callable[..., None]] = {
    "settings_schema": settings_schema,
    "delete_tracking": delete_tracking,
    "unregistered_checkpoints": unregistered_checkpoints,
}

if __name__ == "__main__":
    try:
        ERRANDS[sys.argv[1]](*sys.argv[2:])
    except EvertrainError as error:
        sys.exit(" ".join(str(error).split()))
