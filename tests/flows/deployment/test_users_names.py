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

import pytest
import yaml

from benchmarks.services import ray_cluster
from tests.flows.deployment.deployed import (
    DEPLOY_AGAIN,
    Site,
    filtered,
    log_of,
    own_prefect_file,
    state,
    wait_for,
)
from tests.users_project import write_project

POOL = "project"
# As docs/prefect.md says.
ISOLATED: dict[str, object] = {
    "command": f"{sys.executable} -I -m prefect.engine",
    "env": {"PYTHONSAFEPATH": "1"},
}
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
    training = {"run": run, "workload": "mine:Mine", "epochs": 1, "gate": False, **parameters}
    deploy(site, project, "project", training, ISOLATED)
    site.prefect("deployment", "run", "retrain/project", "--watch")
    assert state(api, run) == "COMPLETED", log_of(api, run)


@pytest.mark.promise("own-names")
def test_a_deployment_of_an_earlier_evertrain_runs_beside_the_projects_own_flows(
    site: Site, api: str, home: Path, tmp_path: Path
) -> None:
    write_project(tmp_path)
    training = {"run": "earlier", "workload": "mine:Mine", "epochs": 1, "gate": False}
    deploy(site, tmp_path, "earlier", training, ISOLATED)
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
    site.prefect("deployment", "run", "retrain/earlier", "--watch")
    assert state(api, "earlier") == "COMPLETED"
    assert log_of(api, "earlier").count(DEPLOY_AGAIN) == 1


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
