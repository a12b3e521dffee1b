"""What follows a run folder: a mirror, and a follower with a tracker of the test's choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlflow

from train_core.policy.end_status import EndStatus
from train_core.storage.run_folder import RunFolder
from train_core.tracking.delivery.mirror import Mirror
from train_core.tracking.follow import Follower, tracked_run
from train_core.tracking.mlflow.mlflow_tracker import MlflowTracker
from train_core.tracking.refusals import Refusals
from train_core.tracking.tracker import Tracker


def tracker_of(
    folder: RunFolder, uri: str, kind: type[Tracker] = MlflowTracker, *, experiment: str = "tests"
) -> Tracker:
    """The run in this tracker."""
    return kind(uri, experiment, tracked_run(folder, folder.record()))


def following(folder: RunFolder, tracker: Tracker, *, is_live: bool = True) -> Follower:
    """A follower that has begun to show the run."""
    follower = Follower(folder, Refusals(failure_of=tracker.failure_of), is_live=is_live)
    follower.begin(tracker, folder.record())
    return follower


def mirrored(folder: RunFolder, uri: str, **more: Any) -> Mirror:
    """A mirror of the run that has begun, and has come to its end."""
    mirror = Mirror(folder, uri, "tests", **more)
    mirror.start()
    assert mirror.close(EndStatus.FINISHED)
    return mirror


@contextmanager
def mlflow_at(uri: str) -> Iterator[None]:
    """MLflow's own functions, which know one address of the process, at this one."""
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(None)


def register(uri: str, model_uri: str) -> None:
    """A version of the registered model `digits`, as a user makes it."""
    with mlflow_at(uri):
        assert mlflow.register_model(model_uri, "digits").status == "READY"
