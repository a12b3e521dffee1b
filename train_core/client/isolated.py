"""Small jobs that need torch or MLflow, each done in a process of its own.

Like the driver, a door for programs that import neither themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from train_core.described_errors import FAILED, rebuild
from train_core.differences import Comparison, RunsComparison
from train_core.entry_points import ISOLATED_CALLS
from train_core.errors import ConfigError, StageError
from train_core.results import ExportResult, PredictionsResult, Tracking
from train_core.storage.addresses import absolute, file_at
from train_core.storage.records.names import MODEL_FILE
from train_core.storage.run_folder import Checkpoint, RunFolder


def settings_schema(workload: str) -> dict[str, Any]:
    """The JSON schema of a workload's settings. Raises ConfigError if there is no such workload."""
    found: dict[str, Any] = json.loads(_run("settings_schema", workload))
    return found


def delete_tracking(run_url: str, tracking_uri: str) -> None:
    """Delete the MLflow side of the run whose folder is at `run_url`.

    Raises StageError if MLflow does not answer or refuses.
    """
    _run("delete_tracking", run_url, tracking_uri)


def unregistered_checkpoints(run_url: str, tracking_uri: str) -> list[str]:
    """The run's checkpoints whose model MLflow has and no registered version points to.

    Raises TrackingError if MLflow cannot be asked.
    """
    found: list[str] = json.loads(_run("unregistered_checkpoints", run_url, tracking_uri))
    return found


def mirror_run(folder: RunFolder, tracking_uri: str) -> Tracking:
    """Send MLflow what it lacks of a run that nobody drives; where it shows it.

    Raises RunBusyError if the run is being driven, TrackingError if MLflow has not all of it in the
    end, and StorageError.
    """
    return Tracking.model_validate_json(_run("mirror_run", folder.url, tracking_uri))


def mirror_predictions(
    folder: RunFolder, predictions: PredictionsResult, tracking_uri: str
) -> None:
    """Show a batch inference in the MLflow run of its run, which somebody else may drive.

    Raises TrackingError if MLflow does not have the run, StageError if it does not answer.
    """
    _run("mirror_predictions", folder.url, predictions.uri, tracking_uri)


def compare_checkpoints(
    folder_a: RunFolder, folder_b: RunFolder, *pairs: tuple[Checkpoint, Checkpoint]
) -> list[Comparison]:
    """All that differs between checkpoints of two runs, for each pair of them.

    Raises CheckpointError if one is not good.
    """
    names = [str(one.name) for pair in pairs for one in pair]
    found = json.loads(_run("compare_checkpoints", folder_a.url, folder_b.url, *names))
    return [Comparison.model_validate(one) for one in found]


def compare_runs(a: RunFolder, b: RunFolder) -> RunsComparison:
    """The first that differs between two runs. Raises CheckpointError if one cannot be read."""
    return RunsComparison.model_validate_json(_run("compare_runs", a.url, b.url))


def export_weights(
    folder: RunFolder, checkpoint: Checkpoint, target: str, *, overwrite: bool = False
) -> ExportResult:
    """Write a checkpoint's verified weights as one safetensors file.

    `target` is the file's path or URL, or a folder's, which then gets `model.safetensors`. Raises
    ConfigError if there is a file and it may not be overwritten, CheckpointError if the checkpoint
    is not good, and StorageError.
    """
    address = absolute(target)
    if not address.endswith(".safetensors"):
        address = f"{address.rstrip('/')}/{MODEL_FILE}"
    store, key = file_at(address)
    if not overwrite and store.exists(key):
        raise ConfigError(f"{store.uri(key)} exists: name another file, or overwrite it (--force)")
    names = folder.url, str(checkpoint.name), address
    return ExportResult.model_validate_json(_run("export_weights", *names))


def _run(errand: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", ISOLATED_CALLS, errand, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == FAILED:
        raise rebuild(json.loads(done.stdout))
    if done.returncode:
        raise StageError(errand, f"it ended with code {done.returncode}", done.stderr)
    return done.stdout
