"""Flow runs of the deployment whose training is a job on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import psutil
import pytest

from benchmarks.services import ray_cluster
from tests.chaos.standing import HOLD, NOTES
from tests.flows.deployment.deployed import Prefect, flow_runs, found, held, log_of, state, wait_for
from tests.flows.mlflow_side import runs_in, shown_at
from train_core.storage.coordination import lease
from train_core.storage.coordination.stop_request import stop_request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[str]:
    """The address of a Ray cluster whose workers obey as those of a Ray of our own."""
    told = {HOLD: "mid-epoch@0", NOTES: str(home / "notes")}
    with (
        TemporaryDirectory(prefix="ray-") as folder,
        patch.dict(os.environ, told),
        ray_cluster(Path(folder), "--num-cpus=2") as address,
    ):
        yield address


def flow_that_asks() -> psutil.Process:
    """The process of the flow whose run is driven by a job."""
    (found,) = [
        process
        for process in psutil.Process().children(recursive=True)
        if "prefect.engine" in process.cmdline()
    ]
    return found


def test_a_flow_that_is_moved_leaves_its_job_alone_and_attaches_again(
    prefect: Prefect, api: str, home: Path, cluster: str
) -> None:
    with held(prefect, home, "moved", ray_address=cluster) as (folder, go_on):
        flow_that_asks().terminate()
        wait_for(lambda: state(api, "moved") != "RUNNING", home)
        # The job trains on, and has not been asked for anything.
        assert lease.holder_of(folder.store) is not None
        assert stop_request(folder.store, 1) is None
        wait_for(lambda: state(api, "moved") == "RUNNING", home)
        go_on.touch()
        wait_for(lambda: state(api, "moved") == "COMPLETED", home)
    newest = folder.checkpoints()[-1]
    assert (newest.manifest.step, newest.name.attempt) == (60, 1)
    (link,) = {
        str(one["data"])
        for one in found(api, "artifacts", "moved")
        if one["key"] == "retrain-ray-job"
    }
    assert "/#/jobs/moved-a0001-" in link
    (shown,) = {
        run.data.tags.get("evertrain.ray_job")
        for run in runs_in(f"sqlite:///{home}/mlflow.db", folder.url)
        if run.data.tags["evertrain.stage"] == "pipeline"
    }
    assert shown is not None
    assert "/#/jobs/moved-a0001-" in shown


def test_a_flow_that_is_cancelled_ends_its_job(
    prefect: Prefect, api: str, home: Path, cluster: str
) -> None:
    with held(prefect, home, "called-off", ray_address=cluster) as (folder, go_on):
        (flow_run,) = flow_runs(api, "called-off")
        prefect("flow-run", "cancel", flow_run["id"])
        wait_for(lambda: "asked to stop: " in log_of(api, "called-off"), home)
        go_on.touch()
        wait_for(lambda: state(api, "called-off") == "CANCELLED", home)
    assert lease.holder_of(folder.store) is None
    shown = shown_at(f"sqlite:///{home}/mlflow.db", folder.url)
    assert shown["pipeline"]["status"] == "KILLED"
    last = folder.checkpoints()[-1].manifest
    assert (31 < last.step < 60, last.stopped_by) == (True, "request")
