"""A proxy of the environment is never asked for what this machine itself serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.services import mlflow_server
from tests.flows.conftest import RETRAIN, isolated
from tests.flows.mlflow_side import shown_at
from tests.flows.prefect_side import shown_in_prefect
from tests.web import refusing_proxy
from train_core.proxies import ask_loopback_directly
from train_core.storage.run_folder import RunFolder

LOOPBACK = "localhost,127.0.0.1,::1"


@pytest.mark.promise("loopback-direct")
@pytest.mark.timeout(400)
def test_a_retraining_asks_its_own_servers_directly(tmp_path: Path) -> None:
    inherited = {
        name: value
        for name, value in isolated(tmp_path).items()
        if name.lower() not in ("no_proxy", "http_proxy", "https_proxy", "all_proxy")
    }
    with refusing_proxy() as (proxy, asked), mlflow_server(tmp_path) as mlflow:
        proxies = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "evertrain_flows.cli", *RETRAIN, "--epochs", "1"),
                *("--run", "direct", "--tracking-uri", mlflow),
            ],
            cwd=tmp_path,
            env=inherited | proxies,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert asked == []
        assert shown_in_prefect(tmp_path, "direct") == ["COMPLETED"]
        url = RunFolder(str(tmp_path / ".evertrain/runs"), "direct").url
        assert shown_at(mlflow, url)["pipeline"]["status"] == "FINISHED"


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
