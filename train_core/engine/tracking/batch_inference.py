"""A batch inference, shown in the MLflow run of its checkpoint. That run may have ended."""

from __future__ import annotations

from train_core.engine.tracking.client_settings import ONE_QUESTION
from train_core.errors import TrackingError
from train_core.policy.logins import public_uri
from train_core.storage.predictions import committed_predictions
from train_core.storage.run_folder import RunFolder


def show_batch_inference(run_url: str, predictions_url: str, tracking_uri: str) -> None:
    """Show committed predictions in the run's MLflow run; showing them again changes nothing.

    It needs no lease and shows nothing else of the run. Raises TrackingError if MLflow does not
    have the run, and what its client raises if it does not answer.
    """
    ONE_QUESTION.apply()
    from train_core.engine.tracking.existing_mlflow_runs import has_run
    from train_core.engine.tracking.follow import show_predictions
    from train_core.engine.tracking.mlflow_runs import MlflowRuns
    from train_core.engine.tracking.models.registered import raise_refused

    folder = RunFolder.at(run_url)
    experiment = folder.record().requested.experiment
    if not has_run(folder, tracking_uri, experiment):
        raise TrackingError(f"MLflow at {public_uri(tracking_uri)} does not have the run")
    runs = MlflowRuns(folder, tracking_uri, experiment, is_live=False)
    for result in committed_predictions(folder):
        if result.uri == predictions_url:
            show_predictions(runs, result)
    raise_refused(runs)
