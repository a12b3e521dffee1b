"""A project with files of everyday names, deployed from its own folder."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from benchmarks.services import ray_cluster
from tests.flows.deployment.deployed import (
    Prefect,
    filtered,
    log_of,
    own_prefect_file,
    state,
    wait_for,
)
from tests.users_project import write_project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


@pytest.fixture(params=["this machine", "a cluster"])
def parameters(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, object]]:
    """Where the training runs, and what takes the project there."""
    if request.param == "this machine":
        yield {}
        return
    with (
        TemporaryDirectory(prefix="ray-", dir="/tmp") as folder,
        ray_cluster(Path(folder), "--num-cpus=2") as address,
    ):
        # As docs/cluster.md says.
        brought = {"working_dir": str(tmp_path / "project"), "py_executable": "python -E"}
        yield {"ray_address": address, "runtime_env": brought}


@pytest.mark.promise("own-names")
def test_it_is_deployed_from_its_folder_and_trains(
    prefect: Prefect, api: str, tmp_path: Path, parameters: dict[str, object]
) -> None:
    run = f"named-{len(parameters)}"
    project = tmp_path / "project"
    project.mkdir()
    write_project(project)
    # As docs/prefect.md says.
    isolated = {
        "command": f"{sys.executable} -I -m prefect.engine",
        "env": {"PYTHONSAFEPATH": "1"},
    }
    training = {"run": run, "workload": "mine:Mine", "epochs": 1, "gate": False, **parameters}
    deploy(prefect, project, "project", training, isolated)
    prefect("deployment", "run", "retrain/project", "--watch")
    assert state(api, run) == "COMPLETED", log_of(api, run)


def test_a_deployment_of_an_earlier_evertrain_fails_at_once_and_says_which_module_it_wants(
    prefect: Prefect, api: str, home: Path, tmp_path: Path
) -> None:
    deploy(prefect, tmp_path, "earlier", {"run": "earlier"}, {})
    (found,) = filtered(api, "deployments", deployments={"name": {"any_": ["earlier"]}})
    asked = urllib.request.Request(
        f"{api}/deployments/{found['id']}",
        json.dumps({"entrypoint": "flows.retrain.retrain"}).encode(),
        {"Content-Type": "application/json"},
        method="PATCH",
    )
    urllib.request.urlopen(asked, timeout=60).close()
    prefect("deployment", "run", "retrain/earlier")

    def ended() -> list[dict[str, Any]]:
        runs = filtered(api, "flow_runs", deployments={"name": {"any_": ["earlier"]}})
        return [one for one in runs if one["state_type"] in ("FAILED", "CRASHED")]

    wait_for(ended, home)
    # docs/operations.md has the line, and what to do.
    assert "ModuleNotFoundError: No module named 'flows'" in ended()[0]["state"]["message"]


def deploy(
    prefect: Prefect,
    folder: Path,
    name: str,
    parameters: dict[str, object],
    job_variables: dict[str, object],
) -> None:
    """Deploy `retrain` from a folder, under a name that the other tests do not use."""
    file = own_prefect_file(folder, **parameters)
    deployed = yaml.safe_load(file.read_text())
    (retrain,) = (one for one in deployed["deployments"] if one["name"] == "retrain")
    retrain["name"] = name
    retrain["work_pool"]["job_variables"] = job_variables
    file.write_text(yaml.safe_dump(deployed | {"deployments": [retrain]}))
    prefect("deploy", "--all", folder=folder)
