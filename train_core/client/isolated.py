"""Functions that need MLflow or Ray, each called in a process of its own.

Like the driver, for programs that import neither MLflow nor torch: a flow run's process and a
worker of Prefect's live on. MLflow's client is set up by variables of the whole process, too.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

from train_core.client.run import Run, folder_of
from train_core.described_errors import FAILED, rebuild
from train_core.entry_points import (
    DELETE_TRACKING,
    FORGET_MODELS,
    ISOLATED_CALL,
    MIRROR_PREDICTIONS,
    MIRROR_RUN,
    UNREGISTERED_CHECKPOINTS,
)
from train_core.errors import StageError
from train_core.inside import environment_of
from train_core.results import PredictionsResult, Tracking
from train_core.storage.run_folder import RunFolder
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
