"""`--skip-unchanged` through the command line: a second night without anything new."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.flows.conftest import RETRAIN, Evertrain
from tests.flows.mlflow_side import runs_in
from train_core.storage.run_folder import RunFolder

# The first one that needs the undisturbed pipeline waits for it.
pytestmark = pytest.mark.timeout(300)


@pytest.mark.slow
@pytest.mark.promise("skip-unchanged")
def test_a_second_night_without_anything_new_ends_in_seconds_and_leaves_nothing(
    undisturbed: str, evertrain: Evertrain, home: Path, tmp_path: Path
) -> None:
    # A storage of its own: other tests' runs are of the same workload.
    shutil.copytree(home / ".evertrain/runs/undisturbed", tmp_path / "runs/undisturbed")
    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    before = os.times()
    done = evertrain(
        *RETRAIN, "--num-workers", "1", "--storage", str(tmp_path / "runs"), "--skip-unchanged",
        "--tracking-uri", tracking,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("no new data since run undisturbed: nothing is trained\n")
    assert done.stderr == ""
    # Of processors: others may share them. Ray and Prefect alone would take twice as much.
    after = os.times()
    spent_s = after.children_user + after.children_system
    assert spent_s - before.children_user - before.children_system < 15
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["undisturbed"]
    assert runs_in(tracking, RunFolder(str(tmp_path / "runs"), "undisturbed").url) == []
