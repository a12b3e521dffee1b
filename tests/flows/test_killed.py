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
from tests.flows.conftest import Evertrain
from tests.flows.held import HOLD_AFTER_STEP
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.timeout(300)

# 1257 samples make 20 steps an epoch; checkpoints at 7, 14, 20, 21, 28, 35, 40, …
PARAMETERS = (
    *("retrain", "--workload", "tests.flows.held:HeldDigits", "--epochs", "3"),
    *("--batch-size", "64", "--num-shards", "4", "--checkpoint-every-steps", "7"),
    *("--cpus-per-worker", "0.5", "--tracking-uri", ""),
)
HELD_AFTER, COMMITTED = 31, 28


def outcome(folder: RunFolder) -> dict[str, Any]:
    """All that two equal runs have in common."""
    report = folder.report()
    assert report is not None
    table = pq.read_table([file.removeprefix("file://") for file in report["predictions"]["files"]])
    return {
        "training": digest_of_training(folder),
        "evaluations": [[e["split"], e["metrics"]] for e in report["evaluations"]],
        "best": report["best"]["step"],
        "predictions": table.sort_by("id").to_pylist(),
    }


@pytest.fixture(scope="module")
def undisturbed(evertrain: Evertrain, home: Path) -> dict[str, Any]:
    done = evertrain(*PARAMETERS, "--run", "undisturbed", "--num-workers", "1")
    assert done.returncode == 0, done.stderr
    return outcome(RunFolder(str(home / ".evertrain/runs"), "undisturbed"))


@pytest.mark.parametrize(
    "workers",
    [pytest.param("1", marks=pytest.mark.slow), "2", pytest.param("4", marks=pytest.mark.slow)],
)
def test_killed_pipeline_ends_as_if_undisturbed(
    workers: str,
    undisturbed: dict[str, Any],
    evertrain: Evertrain,
    environment: dict[str, str],
    home: Path,
) -> None:
    run = f"killed-{workers}"
    folder = RunFolder(str(home / ".evertrain/runs"), run)
    parameters = (*PARAMETERS, "--run", run, "--num-workers", workers)
    kill_when_committed(parameters, folder, environment, home)

    done = evertrain(*parameters)

    assert done.returncode == 0, done.stderr
    assert outcome(folder) == undisturbed
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
    # The driver sees that its program is gone and takes Ray with it; Prefect's server does not.
    _, alive = psutil.wait_procs(left, timeout=30)
    servers = [one for one in alive if "prefect" in " ".join(one.cmdline())]
    for server in servers:
        server.kill()
    psutil.wait_procs(servers)
    assert set(alive) == set(servers), [one.cmdline() for one in alive if one not in servers]
