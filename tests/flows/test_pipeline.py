"""The whole pipeline through the command line, with the real Prefect, Ray and MLflow."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.engine.digests import digest_of_training
from tests.flows.conftest import Evertrain
from tests.flows.mlflow_side import runs_in_mlflow, shown_in_mlflow
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
    assert [row["checkpoint"] for row in verified] == [row["checkpoint"] for row in checkpoints]
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


@pytest.mark.slow
def test_a_dry_run_takes_one_step_through_every_stage(evertrain: Evertrain, home: Path) -> None:
    done = evertrain("retrain", "--run", "dry", "--dry-run")
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json((home / ".evertrain/runs/dry/report.json").read_text())
    assert report.train.step == 1
    assert {one.split for one in report.evaluations} == {"validation", "test"}
    assert 0 < report.predictions.num_rows < 360


@pytest.fixture(scope="module")
def stopped(evertrain: Evertrain, home: Path, environment: dict[str, str]) -> str:
    """The run `stopped`, which a Ctrl-C ended and then, continued, a SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "retrain", "--run", "stopped", "--epochs", "500"],
            cwd=home,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert any(line.startswith("  step ") for line in process.stdout)
            started = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            _, error = process.communicate()
        assert process.returncode == 130, error
        _, left = psutil.wait_procs(started, timeout=10)
        assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]
    return first


def test_a_stopped_run_is_continued(stopped: str, home: Path) -> None:
    assert stopped.startswith("continuing run stopped")
    newest = RunFolder(str(home / ".evertrain/runs"), "stopped").checkpoints()[-1]
    assert newest.name.attempt == 2


def test_a_stopped_run_says_so(stopped: str, evertrain: Evertrain, home: Path) -> None:
    status = json.loads(evertrain("runs", "status", "stopped", "--json").stdout)
    assert status["state"] == "interrupted"
    shown = shown_in_mlflow(home, f"{home}/.evertrain/runs/stopped")
    assert {stage: run["status"] for stage, run in shown.items()} == {
        "pipeline": "KILLED",
        "train": "KILLED",
    }


@pytest.mark.promise("runs-delete")
def test_a_deleted_run_is_gone_from_mlflow_too(
    stopped: str, undisturbed: str, evertrain: Evertrain, home: Path
) -> None:
    done = evertrain("runs", "delete", "stopped", "--yes")
    assert done.returncode == 0, done.stderr
    assert not (home / ".evertrain/runs/stopped").exists()
    assert runs_in_mlflow(home, f"{home}/.evertrain/runs/stopped") == []
    assert runs_in_mlflow(home, f"{home}/.evertrain/runs/undisturbed")
