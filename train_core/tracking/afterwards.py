"""What becomes of a run later, shown in its MLflow run, which may have ended.

A batch inference, a person's answer, a checkpoint that was deleted. None of it needs the lease, and
nothing else of the run is shown.
"""

from __future__ import annotations

from train_core.champion.log import ModelLog
from train_core.errors import TrackingError
from train_core.policy.end_status import EndStatus
from train_core.policy.logins import public_uri
from train_core.storage.coordination import lease
from train_core.storage.predictions import committed_predictions
from train_core.storage.run_folder import RunFolder
from train_core.storage.runs_of_storage import is_run_finished
from train_core.tracking.follow import Follower, tracked_run
from train_core.tracking.mlflow.client_settings import ONE_QUESTION
from train_core.tracking.refusals import Refusals
from train_core.tracking.show_models import show_models
from train_core.tracking.show_results import show_gate, show_predictions
from train_core.tracking.shown_run import describe


def show_batch_inference(run_url: str, predictions_url: str, tracking_uri: str) -> None:
    """Show committed predictions in the run's MLflow run; showing them again changes nothing.

    Raises TrackingError if MLflow does not have the run, and what its client raises if it does not
    answer.
    """
    folder = RunFolder.at(run_url)
    if not _has_run(folder, tracking_uri):
        raise TrackingError(f"MLflow at {public_uri(tracking_uri)} does not have the run")
    follower, refusals = _follower(folder, tracking_uri)
    for result in committed_predictions(folder):
        if result.uri == predictions_url:
            show_predictions(follower.shown, result)
    _raise_refused(folder, refusals)


def show_gate_at(run_url: str, model: str, version: int, tracking_uri: str) -> None:
    """Show the newest decision on a version of the run at this address.

    Raises TrackingError if this MLflow does not have it, and MLflow's own errors.
    """
    folder = RunFolder.at(run_url)
    result = ModelLog(folder.storage, model).read().newest_result(version)
    if result is None or not _has_run(folder, tracking_uri):
        raise TrackingError(
            f"MLflow at {public_uri(tracking_uri)!r} does not have run {folder.name!r}: "
            f"`evertrain mirror {folder.name}` shows it there"
        )
    follower, refusals = _follower(folder, tracking_uri)
    show_gate(follower.shown, result)
    if follower.shown.is_open() and lease.holder_of(folder.store) is None:
        if is_run_finished(folder, folder.report(), folder.newest()):
            follower.end(EndStatus.FINISHED)
        else:
            # It has stages left, at whose end its driver ends it.
            describe(follower.shown)
    _raise_refused(folder, refusals)


def forget_deleted(run_url: str, tracking_uri: str) -> None:
    """Delete the models of checkpoints that are not in the run's folder any more."""
    folder = RunFolder.at(run_url)
    if _has_run(folder, tracking_uri):
        follower, _ = _follower(folder, tracking_uri)
        show_models(follower.shown, folder.checkpoints(), is_finished=False)


def _has_run(folder: RunFolder, tracking_uri: str) -> bool:
    ONE_QUESTION.apply()
    # Imported late: the settings have to be there before MLflow is.
    from train_core.tracking.mlflow.existing_runs import has_run

    return has_run(folder, tracking_uri, folder.record().requested.experiment)


def _follower(folder: RunFolder, tracking_uri: str) -> tuple[Follower, Refusals]:
    from train_core.tracking.mlflow.mlflow_tracker import MlflowTracker

    record, refusals = folder.record(), Refusals(failure_of=MlflowTracker.failure_of)
    experiment = record.requested.experiment
    tracker = MlflowTracker(tracking_uri, experiment, tracked_run(folder, record), refusals)
    follower = Follower(folder, refusals, is_live=False)
    follower.begin(tracker, record)
    return follower, refusals


def _raise_refused(folder: RunFolder, refusals: Refusals) -> None:
    """Raise TrackingError if MLflow refused something of what was shown."""
    if told := "; ".join(refusals.told):
        raise TrackingError(f"MLflow does not take all of run {folder.name!r}: {told}")
