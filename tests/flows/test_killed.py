"""A pipeline that is killed with SIGKILL in the middle ends, started again, as if it was not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from tests.engine.digests import digest_of_training
from tests.flows.conftest import RETRAIN, Evertrain
from tests.flows.held import HOLD_AFTER_STEP
from tests.flows.mlflow_side import shown_in_mlflow
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.timeout(300)

HELD_AFTER, COMMITTED = 31, 28


def outcome(home: Path, run: str) -> dict[str, Any]:
    """All that two equal runs have in common."""
    folder = RunFolder(str(home / ".evertrain/runs"), run)
    report = folder.report()
    assert report is not None
    table = pq.read_table([file.removeprefix("file://") for file in report["predictions"]["files"]])
    return {
        "training": digest_of_training(folder),
        "evaluations": [[e["split"], e["metrics"]] for e in report["evaluations"]],
        "best": report["best"]["step"],
        "predictions": table.sort_by("id").to_pylist(),
        "mlflow": shown_in_mlflow(home, folder.url),
    }


@pytest.mark.parametrize(
    "workers",
    [pytest.param("1", marks=pytest.mark.slow), "2", pytest.param("4", marks=pytest.mark.slow)],
)
def test_killed_pipeline_ends_as_if_undisturbed(
    workers: str,
    undisturbed: str,
    evertrain: Evertrain,
    environment: dict[str, str],
    home: Path,
) -> None:
    run = f"killed-{workers}"
    folder = RunFolder(str(home / ".evertrain/runs"), run)
    parameters = (*RETRAIN, "--run", run, "--num-workers", workers)
    kill_when_committed(parameters, folder, environment, home)

    done = evertrain(*parameters)

    assert done.returncode == 0, done.stderr
    assert outcome(home, run) == outcome(home, "undisturbed")
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    assert (newest.manifest.step, newest.name.attempt) == (60, 2)


def kill_when_committed(
    parameters: tuple[str, ...], folder: RunFolder, environment: dict[str, str], home: Path
) -> None:
    """Start the pipeline, which holds after a step, and kill it once a checkpoint is committed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *parameters],
        cwd=home,
        env={**environment, HOLD_AFTER_STEP: str(HELD_AFTER)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    try:
        while not any(c.manifest.step == COMMITTED for c in folder.checkpoints()):
            assert process.poll() is None, "the pipeline ended by itself"
            assert time.monotonic() < deadline, "no checkpoint was committed"
            time.sleep(0.1)
        left = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait()
    # The driver and Prefect's server see that their program is gone, and Ray goes with the driver.
    _, alive = psutil.wait_procs(left, timeout=30)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
