"""A follower of a run folder, with a tracker of the test's choice."""

from __future__ import annotations

from train_core.storage.run_folder import RunFolder
from train_core.tracking.follow import Follower, tracked_run
from train_core.tracking.mlflow.mlflow_tracker import MlflowTracker
from train_core.tracking.refusals import Refusals
from train_core.tracking.tracker import Tracker


def tracker_of(
    folder: RunFolder, uri: str, kind: type[Tracker] = MlflowTracker, *, experiment: str = "tests"
) -> Tracker:
    """The run in this tracker."""
    return kind(uri, experiment, tracked_run(folder, folder.record()))


def mlflow_of(folder: RunFolder, uri: str) -> MlflowTracker:
    """The run in MLflow."""
    return MlflowTracker(uri, "tests", tracked_run(folder, folder.record()))


def following(folder: RunFolder, tracker: Tracker, *, is_live: bool = True) -> Follower:
    """A follower that has begun to show the run."""
    follower = Follower(folder, Refusals(failure_of=tracker.failure_of), is_live=is_live)
    follower.begin(tracker, folder.record())
    return follower
