"""What MLflow missed of a run is sent afterwards, once, by whoever asks for it."""

from __future__ import annotations

import time

import pytest

from tests.mlflow.conftest import MlflowServer
from tests.mlflow.run_builder import RunBuilder
from tests.mlflow.test_mirror import expected, mirror_once, points, stages
from train_core.engine.mirror import catch_up
from train_core.errors import ConfigError, TrackingError


def test_what_was_missed_is_sent_and_what_is_there_is_not(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.commit(range(1, 30))
    mirror_once(run, tracking_uri, "FAILED")
    run.new_attempt()
    run.commit(range(30, 60), finished=True)
    run.lease.release()
    before = stages(tracking_uri)["pipeline"].info.run_id
    for _ in range(2):
        tracking = catch_up(run.folder, tracking_uri)
        assert tracking.run_id == before
        assert points(tracking_uri) == expected(range(1, 60))
        # It has no report: its pipeline was interrupted after the training.
        shown = {name: stage.info.status for name, stage in stages(tracking_uri).items()}
        assert shown == {"pipeline": "KILLED", "train": "FINISHED"}


def test_a_run_that_is_driven_has_a_mirror_already(run: RunBuilder, tracking_uri: str) -> None:
    run.commit(range(1, 30))
    with pytest.raises(ConfigError, match="which mirrors it: wait for its end"):
        catch_up(run.folder, tracking_uri)


def test_a_server_that_is_down_is_an_error_within_seconds(
    run: RunBuilder, server: MlflowServer
) -> None:
    run.commit(range(1, 30))
    run.lease.release()
    server.stop()
    begin = time.monotonic()
    with pytest.raises(TrackingError, match="has not taken all of run 'digits-1'"):
        catch_up(run.folder, server.uri)
    assert time.monotonic() - begin < 60
