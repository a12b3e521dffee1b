"""The whole pipeline through the command line, with the real Prefect, Ray and MLflow."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.flows.conftest import Evertrain
from train_core.results import Report
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def finished(evertrain: Evertrain, home: Path) -> str:
    done = evertrain("retrain", "--run", "first", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_last_line_is_the_reports_address(finished: str, home: Path) -> None:
    last = finished.splitlines()[-1]
    assert last == f"report: {home}/.evertrain/runs/first/report.json"
    report = Report.model_validate_json(Path(last.removeprefix("report: ")).read_text())
    assert report.run == "first"
    assert {one.split for one in report.evaluations} == {"validation", "test"}
    assert set(report.test_metrics) >= {"accuracy", "loss"}
    assert report.predictions.num_rows > 0
    assert (home / ".evertrain/runs/first/curves.png").read_bytes().startswith(b"\x89PNG")
    assert {"prepare", "train", "evaluate validation", "evaluate test", "infer"} <= set(
        report.seconds
    )


def test_the_summary_tells_what_came_out(finished: str, home: Path) -> None:
    report = RunFolder(str(home / ".evertrain/runs"), "first").report()
    assert report is not None
    for shown in (report["best"]["name"], report["predictions"]["uri"], "best", "evertrain ui"):
        assert shown in finished
    for one in report["evaluations"]:
        assert one["checkpoint"]["name"] in finished


def test_runs_and_checkpoints_can_be_looked_at(finished: str, evertrain: Evertrain) -> None:
    listed = json.loads(evertrain("runs", "list", "--json").stdout)
    assert [(row["run"], row["state"]) for row in listed if row["run"] == "first"] == [
        ("first", "finished")
    ]
    checkpoints = json.loads(evertrain("ls", ".evertrain/runs/first", "--json").stdout)
    name = checkpoints[-1]["checkpoint"]
    manifest = json.loads(evertrain("show", f"first/{name}", "--json").stdout)
    assert "model.safetensors" in [file["name"] for file in manifest["files"]]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_ends_orderly_and_is_continued(
    number: signal.Signals,
    code: int,
    evertrain: Evertrain,
    home: Path,
    environment: dict[str, str],
) -> None:
    run = f"stopped-{code}"
    with subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "retrain", "--run", run, "--epochs", "500"],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any(line.startswith("  step ") for line in process.stdout)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, error = process.communicate()
    assert process.returncode == code, error
    _, left = psutil.wait_procs(started, timeout=10)
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]
    status = json.loads(evertrain("runs", "status", run, "--json").stdout)
    assert status["state"] == "interrupted"
    done = evertrain("retrain", "--run", run, "--epochs", "60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"continuing run {run}")


def test_a_deleted_run_is_gone(finished: str, evertrain: Evertrain, home: Path) -> None:
    done = evertrain("runs", "delete", "first", "--yes")
    assert done.returncode == 0, done.stderr
    assert not (home / ".evertrain/runs/first").exists()
