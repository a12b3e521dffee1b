"""What stands around a command: a proxy of the environment, and files of any name."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.services import BIN, mlflow_server
from tests import commands
from tests.flows.conftest import isolated
from tests.flows.mlflow_side import shown_at
from tests.flows.prefect_side import shown_in_prefect
from tests.users_project import write_project
from tests.web import refusing_proxy
from train_core.proxies import ask_loopback_directly
from train_core.results import Report
from train_core.storage.run_folder import RunFolder

LOOPBACK = "localhost,127.0.0.1,::1"


@pytest.mark.slow
@pytest.mark.promise("dry-run", "loopback-direct", "own-names")
@pytest.mark.timeout(400)
def test_a_dry_run_takes_one_step_through_every_stage_whatever_stands_around(
    tmp_path: Path,
) -> None:
    """In a project whose files have taken names, on the path too, and with a proxy that refuses."""
    project = tmp_path / "project"
    project.mkdir()
    write_project(project)
    proxies = ("no_proxy", "http_proxy", "https_proxy", "all_proxy")
    inherited = {
        name: value for name, value in isolated(project).items() if name.lower() not in proxies
    }
    with refusing_proxy() as (proxy, asked), mlflow_server(tmp_path) as mlflow:
        behind = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy}
        commands.succeed(
            [
                *(BIN / "evertrain", "retrain", "--workload", "mine:Mine", "--dry-run"),
                *("--num-workers", "2", "--run", "dry", "--tracking-uri", mlflow),
            ],
            cwd=project,
            env=inherited | behind | {"PYTHONPATH": str(project)},
        )
        assert asked == []
        assert shown_in_prefect(project, "dry") == ["COMPLETED"]
        folder = RunFolder(str(project / ".evertrain/runs"), "dry")
        assert shown_at(mlflow, folder.url)["pipeline"]["status"] == "FINISHED"
    report = Report.model_validate(folder.report())
    assert report.train.step == 1
    assert {one.split for one in report.evaluations} == {"validation", "test"}
    assert 0 < report.predictions.num_rows < 360


@pytest.mark.promise("loopback-direct")
@pytest.mark.parametrize(
    ("given", "listed"),
    [
        # Without a proxy nothing is set, which would hide macOS's own settings.
        ({}, None),
        ({"no_proxy": "example.com"}, "example.com"),
        ({"HTTP_PROXY": "x"}, LOOPBACK),
        ({"https_proxy": "x", "NO_PROXY": "a, localhost"}, "a,localhost,127.0.0.1,::1"),
        ({"ALL_PROXY": "x", "NO_PROXY": "a", "no_proxy": "b"}, f"b,{LOOPBACK}"),
        ({"HTTP_PROXY": "x", "no_proxy": "*"}, "*"),
    ],
)
def test_the_list_of_the_environment_is_added_to(given: dict[str, str], listed: str | None) -> None:
    environment = dict(given)
    ask_loopback_directly(environment)
    assert environment.get("no_proxy") == listed
