"""Functions that need torch or MLflow, each called in a process of its own.

Like the driver, for programs that import neither themselves.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

from train_core.client.checkpoint import Checkpoint
from train_core.client.run import Run, folder_of
from train_core.config import TrainConfig
from train_core.described_errors import FAILED, rebuild
from train_core.differences import Comparison, RunsComparison
from train_core.entry_points import (
    CHECK_WORKLOAD,
    COMPARE_CHECKPOINTS,
    COMPARE_RUNS,
    DELETE_TRACKING,
    EXPORT_WEIGHTS,
    FORGET_MODELS,
    ISOLATED_CALL,
    MIRROR_PREDICTIONS,
    MIRROR_RUN,
    SETTINGS_SCHEMA,
    TRAIN_PLAINLY,
    UNREGISTERED_CHECKPOINTS,
)
from train_core.errors import ConfigError, StageError
from train_core.inside import environment_of
from train_core.results import ExportResult, PredictionsResult, Rehearsal, Tracking
from train_core.storage.addresses import absolute, file_at
from train_core.storage.records.names import MODEL_FILE
from train_core.storage.run_folder import Commit, RunFolder
from train_core.text.log_lines import warning_in

_log = logging.getLogger(__name__)


def isolated_call(function: str, **arguments: Any) -> Any:
    """Call the function `module:name` in a process of its own; its result.

    Arguments and result travel as JSON. An error of evertrain's that the function raises is raised
    here with its own type; any other, and the death of the process, is a StageError. What evertrain
    warns of there is logged here.
    """
    done = subprocess.run(
        [sys.executable, "-m", ISOLATED_CALL, function],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        env=environment_of("own process"),
        # What a user's module prints may be in any encoding.
        errors="replace",
        check=False,
    )
    for line in done.stderr.split("\n"):
        if warning := warning_in(line):
            _log.warning("%s", warning)
    name = function.rpartition(":")[2]
    died = StageError(name, f"it ended with code {done.returncode}, without an answer", done.stderr)
    if done.returncode not in (0, FAILED):
        raise died
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        # It ended by itself, as by os._exit(0).
        raise died from None
    if done.returncode == FAILED:
        raise rebuild(answer)
    return answer


def settings_schema(workload: str) -> dict[str, Any]:
    """The JSON schema of a workload's settings. Raises ConfigError if there is no such workload."""
    return dict(isolated_call(SETTINGS_SCHEMA, name=workload))


def check_workload(config: TrainConfig) -> Rehearsal:
    """Rehearse the workload of a configuration: what would go wrong in a training.

    Raises ConfigError for what cannot be loaded, and for what the engine itself refuses.
    """
    asked = config.model_dump(mode="json")
    return Rehearsal.model_validate(isolated_call(CHECK_WORKLOAD, config=asked))


def delete_tracking(run_url: str, tracking_uri: str) -> None:
    """Delete the MLflow side of the run whose folder is at `run_url`.

    Raises StageError if MLflow does not answer or refuses.
    """
    isolated_call(DELETE_TRACKING, run_url=run_url, tracking_uri=tracking_uri)


def unregistered_checkpoints(run_url: str, tracking_uri: str) -> list[str]:
    """The run's checkpoints whose model MLflow has and no registered version points to.

    Raises TrackingError if MLflow cannot be asked.
    """
    asked = {"run_url": run_url, "tracking_uri": tracking_uri}
    return list(isolated_call(UNREGISTERED_CHECKPOINTS, **asked))


def forget_models(run_url: str, tracking_uri: str) -> None:
    """Delete the models in MLflow whose checkpoints are not in the run's folder any more.

    One that a registered version points to stays. Raises StageError if MLflow does not answer.
    """
    isolated_call(FORGET_MODELS, run_url=run_url, tracking_uri=tracking_uri)


def mirror_run(run: Run | RunFolder, tracking_uri: str) -> Tracking:
    """Send MLflow what it lacks of a run that nobody drives; where it shows it.

    Raises RunBusyError if the run is being driven, TrackingError if MLflow has not all of it in the
    end, and StorageError.
    """
    shown = isolated_call(MIRROR_RUN, run_url=folder_of(run).url, tracking_uri=tracking_uri)
    return Tracking.model_validate(shown)


def mirror_predictions(
    folder: RunFolder, predictions: PredictionsResult, tracking_uri: str
) -> None:
    """Show a batch inference in the MLflow run of its run, which somebody else may drive.

    Raises TrackingError if MLflow does not have the run, StageError if it does not answer.
    """
    asked = {"run_url": folder.url, "predictions_url": predictions.uri}
    isolated_call(MIRROR_PREDICTIONS, **asked, tracking_uri=tracking_uri)


def compare_checkpoints(
    folder_a: RunFolder,
    folder_b: RunFolder,
    *pairs: tuple[Commit, Commit],
) -> list[Comparison]:
    """All that differs between checkpoints of two runs, for each pair of them.

    Raises CheckpointError if one is not good.
    """
    names = [[str(one.name) for one in pair] for pair in pairs]
    asked = {"url_a": folder_a.url, "url_b": folder_b.url, "pairs": names}
    found = isolated_call(COMPARE_CHECKPOINTS, **asked)
    return [Comparison.model_validate(one) for one in found]


def compare_runs(a: Run | RunFolder, b: Run | RunFolder) -> RunsComparison:
    """The first that differs between two runs. Raises CheckpointError if one cannot be read."""
    urls = {"url_a": folder_of(a).url, "url_b": folder_of(b).url}
    return RunsComparison.model_validate(isolated_call(COMPARE_RUNS, **urls))


def train_plainly(task_file: Path) -> None:
    """Train a task of `verify_resume` in plain PyTorch, for the digests of its steps.

    Raises ConfigError if it is none that plain PyTorch can repeat.
    """
    isolated_call(TRAIN_PLAINLY, task_file=str(task_file))


def export_weights(
    run: Run | RunFolder,
    checkpoint: Checkpoint | Commit,
    target: str,
    *,
    overwrite: bool = False,
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
    asked = {
        "run_url": folder_of(run).url,
        "checkpoint": str(checkpoint.name),
        "address": address,
    }
    return ExportResult.model_validate(isolated_call(EXPORT_WEIGHTS, **asked))
