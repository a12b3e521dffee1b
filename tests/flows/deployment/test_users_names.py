"""A project with files of everyday names, deployed from its own folder."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from benchmarks.services import ray_cluster
from tests.flows.deployment.deployed import (
    Site,
    filtered,
    log_of,
    own_prefect_file,
    state,
    wait_for,
)
from tests.users_project import write_project

POOL = "project"
MISSING = "ModuleNotFoundError: No module named 'flows'"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def site(home: Path, environment: dict[str, str], api: str) -> Iterator[Site]:
    """A worker that does not know the checkout, which has a `flows/` and a `tasks/`, too."""
    own = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    made = Site(home, own, api)
    made.prefect("work-pool", "create", POOL, "--type", "process")
    with made.worker(POOL):
        yield made


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
    site: Site, api: str, tmp_path: Path, parameters: dict[str, object]
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
    deploy(site, project, "project", training, isolated)
    site.prefect("deployment", "run", "retrain/project", "--watch")
    assert state(api, run) == "COMPLETED", log_of(api, run)


def test_a_deployment_of_an_earlier_evertrain_fails_at_once_and_the_worker_says_why(
    site: Site, api: str, home: Path, tmp_path: Path
) -> None:
    deploy(site, tmp_path, "earlier", {"run": "earlier"}, {})
    (found,) = filtered(api, "deployments", deployments={"name": {"any_": ["earlier"]}})
    asked = urllib.request.Request(
        f"{api}/deployments/{found['id']}",
        json.dumps({"entrypoint": "flows.retrain.retrain"}).encode(),
        {"Content-Type": "application/json"},
        method="PATCH",
    )

    def is_patched() -> bool:
        # On a busy machine the server's database is locked at times.
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(asked, timeout=60):
            return True
        return False

    wait_for(is_patched, home)
    site.prefect("deployment", "run", "retrain/earlier")

    def ended() -> list[dict[str, Any]]:
        runs = filtered(api, "flow_runs", deployments={"name": {"any_": ["earlier"]}})
        return [one for one in runs if one["state_type"] in ("FAILED", "CRASHED")]

    wait_for(ended, home)
    # docs/operations.md has the line, and what to do.
    wait_for(lambda: MISSING in (home / "worker.log").read_text(), home)


def deploy(
    site: Site,
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
    retrain["work_pool"] = {"name": POOL, "job_variables": job_variables}
    file.write_text(yaml.safe_dump(deployed | {"deployments": [retrain]}))
    site.prefect("deploy", "--all", folder=folder)
