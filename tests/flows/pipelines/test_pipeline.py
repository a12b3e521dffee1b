"""The whole pipeline through the command line, with the real Prefect, Ray and MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.conftest import Evertrain
from tests.flows.mlflow_side import at_home, mlflow_client
from tests.rank.digests import digest_of_training
from train_core.champion.log import ModelLog, registered_models
from train_core.results import Report
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.timeout(300)


@pytest.mark.promise("whole-pipeline")
def test_the_last_line_is_the_reports_address(undisturbed: str, home: Path) -> None:
    last = undisturbed.splitlines()[-1]
    assert last == f"report: {home}/.evertrain/runs/undisturbed/report.json"
    report = Report.model_validate_json(Path(last.removeprefix("report: ")).read_text())
    assert report.run == "undisturbed"
    assert {one.split for one in report.evaluations} == {"validation", "test"}
    assert set(report.test_metrics) >= {"accuracy", "loss"}
    assert report.predictions.num_rows > 0
    assert (home / ".evertrain/runs/undisturbed/curves.png").read_bytes().startswith(b"\x89PNG")
    assert {"prepare", "train", "evaluate validation", "evaluate test", "infer"} <= set(
        report.seconds
    )


@pytest.mark.promise("whole-pipeline")
def test_the_summary_tells_what_came_out(undisturbed: str, home: Path) -> None:
    report = RunFolder(str(home / ".evertrain/runs"), "undisturbed").report()
    assert report is not None
    for shown in (report["best"]["name"], report["predictions"]["uri"], "best", "evertrain ui"):
        assert shown in undisturbed
    for one in report["evaluations"]:
        assert one["checkpoint"]["name"] in undisturbed


@pytest.mark.promise("no-gate")
def test_without_a_gate_no_model_is_registered(undisturbed: str, home: Path) -> None:
    storage = str(home / ".evertrain/runs")
    # Those that are struck have a gate.
    versions = [
        version
        for model in registered_models(storage)
        for version in ModelLog(storage, model).read().versions.values()
    ]
    assert "undisturbed" not in {version.run for version in versions}
    folder = RunFolder(storage, "undisturbed")
    report = folder.report()
    assert report is not None
    assert report["gate"] is None
    assert folder.store.names("decisions") == []
    with mlflow_client(at_home(home)) as client:
        shown = client.search_model_versions("")
        assert "undisturbed" not in {one.tags.get("evertrain.run") for one in shown}


@pytest.mark.slow
def test_runs_and_checkpoints_can_be_looked_at(undisturbed: str, evertrain: Evertrain) -> None:
    listed = json.loads(evertrain("runs", "list", "--json").stdout)
    assert [(row["run"], row["state"]) for row in listed if row["run"] == "undisturbed"] == [
        ("undisturbed", "finished")
    ]
    checkpoints = json.loads(evertrain("ls", ".evertrain/runs/undisturbed", "--json").stdout)
    name = checkpoints[-1]["checkpoint"]
    manifest = json.loads(evertrain("show", f"undisturbed/{name}", "--json").stdout)
    assert "model.safetensors" in [file["name"] for file in manifest["files"]]
    verified = json.loads(evertrain("verify", "undisturbed", "--json").stdout)
    names = [row["checkpoint"] for row in checkpoints]
    assert [row["what"] for row in verified if row["what"].startswith("step-")] == names
    assert {row["verdict"] for row in verified} == {"good"}


def test_a_fork_of_a_step_that_was_not_kept_is_refused(
    undisturbed: str, evertrain: Evertrain
) -> None:
    done = evertrain("runs", "fork", "undisturbed", "--at", "1")
    assert done.returncode == 2
    assert "has no checkpoint of step 1; it has" in done.stderr


@pytest.mark.slow
def test_a_fork_is_resumed_and_extended(undisturbed: str, evertrain: Evertrain, home: Path) -> None:
    forked = evertrain("runs", "fork", "undisturbed", "--at", "56", "--to", "forked")
    assert forked.returncode == 0, forked.stderr
    assert json.loads(evertrain("runs", "status", "forked", "--json").stdout)["step"] == 56
    done = evertrain("runs", "resume", "forked")
    assert done.returncode == 0, done.stderr
    folders = [RunFolder(str(home / ".evertrain/runs"), run) for run in ("undisturbed", "forked")]
    assert len({digest_of_training(folder) for folder in folders}) == 1
    done = evertrain("runs", "extend", "forked", "--epochs", "+1")
    assert done.returncode == 0, done.stderr
    assert folders[1].checkpoints()[-1].manifest.step == 80
