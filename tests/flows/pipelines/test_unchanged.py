"""`--skip-unchanged` through the command line: a second night without anything new."""

from __future__ import annotations

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
def test_a_second_night_without_anything_new_needs_no_ray_and_no_prefect_and_leaves_nothing(
    undisturbed: str, evertrain: Evertrain, home: Path, tmp_path: Path
) -> None:
    # A storage of its own: other tests' runs are of the same workload.
    shutil.copytree(home / ".evertrain/runs/undisturbed", tmp_path / "runs/undisturbed")
    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    # Neither a Ray nor a Prefect that the command would reach or start can be had.
    done = evertrain(
        *RETRAIN,
        "--num-workers",
        "1",
        "--storage",
        str(tmp_path / "runs"),
        "--skip-unchanged",
        "--tracking-uri",
        tracking,
        PREFECT_API_URL="http://127.0.0.1:9/api",
        RAY_TMPDIR="/dev/null",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no new data since run undisturbed: nothing is trained\n"
    assert done.stderr == ""
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["undisturbed"]
    assert runs_in(tracking, RunFolder(str(tmp_path / "runs"), "undisturbed").url) == []
