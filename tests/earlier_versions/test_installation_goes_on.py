"""What needs Ray or Prefect to carry the installation of an earlier version on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests import commands
from tests.earlier_versions.installed import MODEL, WRITTEN, Installation
from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import (
    DEPLOY_AGAIN,
    Server,
    Site,
    all_flow_runs,
    filtered,
    log_of,
    posted,
)
from tests.flows.test_gate import BATCH_INFERENCE
from train_core.client.champions import rollback
from train_core.client.run import Run
from train_core.client.run_summaries import run_status
from train_core.results import PredictionsResult, Report
from train_core.storage.predictions import committed_predictions

pytestmark = [
    pytest.mark.promise("earlier-versions"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.fixture
def place(tmp_path: Path) -> Installation:
    return Installation.copied(tmp_path / "home")


def done(
    place: Installation, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in the home, as its owner does, with the project on the path."""
    own = {
        "PYTHONPATH": f"{environment['PYTHONPATH']}:{place.home / 'project'}",
        "EVERTRAIN_STORAGE": place.storage,
        "MLFLOW_TRACKING_URI": place.tracking_uri,
    }
    command = [sys.executable, *arguments]
    return commands.succeed(command, cwd=place.home, env=environment | own)


def test_a_killed_function_goes_on_from_the_folder_that_it_reported(
    place: Installation, environment: dict[str, str]
) -> None:
    run = Run(place.run("counted"))
    digests = {one.step: one.committed.digest for one in run.checkpoints}
    done(place, environment, "-m", "evertrain_flows.cli", "runs", "resume", "counted")
    assert run_status(run).state == "finished"
    assert list(run.metrics["loss"].dropna()) == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    kept = {one.step: one.committed.digest for one in run.checkpoints}
    assert digests.items() & kept.items()
    assert all(kept.get(step, digest) == digest for step, digest in digests.items())
    with run.latest().as_directory() as folder:
        assert json.loads(Path(folder, "counted.json").read_text()) == {"reached": 5}


def test_the_champion_scores_new_data_as_it_did(
    place: Installation, environment: dict[str, str]
) -> None:
    asked = ("-c", BATCH_INFERENCE, place.storage, f"models:/{MODEL}@champion")
    (answer,) = done(place, environment, *asked).stdout.splitlines()
    result = PredictionsResult.model_validate_json(answer)
    folder = place.run("monday")
    assert result.uri.startswith(f"{folder.url}/predictions/")
    then, now = (
        pq.ParquetDataset(sorted(Path(one.uri).glob("*.parquet"))).read().to_pydict()
        for one in (
            min(committed_predictions(folder), key=lambda one: one.uri == result.uri),
            result,
        )
    )
    assert now["prediction"] == then["prediction"]
    np.testing.assert_allclose(
        np.array(now["probabilities"]), np.array(then["probabilities"]), atol=1e-5
    )


def test_a_rejected_version_stays_rejected_when_its_run_goes_on_after_another_champion(
    place: Installation, environment: dict[str, str]
) -> None:
    rollback(place.storage, MODEL, "it was better", to=3)
    done(place, environment, "-m", "evertrain_flows.cli", "runs", "resume", "tuesday")
    assert [one.version.run for one in place.log.read().entries][-1] == "wednesday"
    report = Report.model_validate(place.run("tuesday").report())
    assert report.gate
    assert report.gate.status == "rejected"


def test_a_deployment_of_that_time_runs_says_how_to_deploy_again_and_is(tmp_path: Path) -> None:
    """Of an installed evertrain: in a checkout, the folder `flows` is found."""
    home = tmp_path / "home"
    home.mkdir()
    environment = isolated(home) | {"PYTHONPATH": ""}
    with Server(home, environment) as server:
        site = Site(home, environment, server.url)
        site.prefect("work-pool", "create", "evertrain", "--type", "process")
        deployment = deploy_as_then(server.url, home)
        with site.worker():
            site.prefect("deployment", "run", "retrain/retrain", "--watch")
        (run,) = all_flow_runs(server.url)
        assert run["state_type"] == "COMPLETED"
        assert log_of(server.url, run["name"]).count(DEPLOY_AGAIN) == 1
        site.deploy_again()
        (now,) = filtered(server.url, "deployments", deployments={"id": {"any_": [deployment]}})
        assert now["entrypoint"] == "evertrain_flows.retrain.retrain"


def deploy_as_then(api: str, home: Path) -> str:
    """The id of a deployment as that version's `prefect deploy` left it at the server."""
    written: dict[str, Any] = json.loads((WRITTEN / "deployment.json").read_text())
    steps = [{"prefect.deployments.steps.set_working_directory": {"directory": str(home)}}]
    small = {"parameters": {"epochs": 1, "num_workers": 1, "settings": {"width": 2}}}
    flow = posted(api, "flows/", {"name": "retrain"})["id"]
    asked = written | {"flow_id": flow, "pull_steps": steps, "parameters": small}
    found: str = posted(api, "deployments/", asked)["id"]
    return found
