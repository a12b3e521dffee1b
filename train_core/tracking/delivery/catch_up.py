"""Sends MLflow the parts of a run that it missed, while no process drives the run."""

from __future__ import annotations

from train_core.errors import TrackingError
from train_core.policy.end_status import EndStatus
from train_core.policy.logins import public_uri
from train_core.results import Tracking
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import read_report
from train_core.storage.runs_of_storage import is_run_finished
from train_core.timing import TIMING, UPKEEP, TrackingTiming
from train_core.tracking.delivery.mirror import Mirror, mlflow_tracker
from train_core.tracking.delivery.run_sender import LoadTracker


def catch_up_at(run_url: str, tracking_uri: str) -> Tracking:
    """`catch_up` of the run at this address."""
    return catch_up(RunFolder.at(run_url), tracking_uri)


def catch_up(
    folder: RunFolder,
    tracking_uri: str,
    timing: TrackingTiming = TIMING.tracking,
    load_tracker: LoadTracker = mlflow_tracker,
) -> Tracking:
    """Send MLflow the parts of the run that it missed; return where MLflow shows the run.

    Raises RunBusyError if a process drives the run: the mirror of that process catches up by
    itself. Raises CheckpointError if the run's report is damaged, ConfigError if a newer evertrain
    wrote it, and TrackingError if MLflow refuses, cannot show a part of the run, or has not
    received everything within `catch_up_s`.
    """
    held = lease.acquire(folder.store, folder.name, timing=UPKEEP)
    with lease.alive_until_released(held):
        report = read_report(folder)
        found = report.model_dump() if report else None
        is_whole = is_run_finished(folder, found, folder.newest(), end=held.end)
        experiment = folder.record().requested.experiment
        mirror = Mirror(
            folder,
            tracking_uri,
            experiment,
            is_live=False,
            timing=timing,
            load_tracker=load_tracker,
        )
        mirror.check()
        mirror.start()
        is_sent = mirror.flush(timing.catch_up_s)
        status = EndStatus.FINISHED if is_whole else EndStatus.KILLED
        if held.end == EndStatus.FAILED and not is_whole:
            status = EndStatus.FAILED
        is_sent = mirror.close(status) and is_sent
    if mirror.not_shown or not is_sent:
        why = "; ".join(mirror.not_shown) or "it does not answer"
        raise TrackingError(
            f"MLflow at {public_uri(tracking_uri)} has not all of run {folder.name!r} ({why}). "
            "Fix that and mirror the run again; nothing is sent twice"
        )
    return mirror.tracking()
