"""Which code a run was begun with is recorded, as far as it can be known."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

from train_core.config import TrainConfig
from train_core.engine.driver.preparing.preflight import check, new_record
from train_core.engine.tools.provenance import code_of
from train_core.requests import DriverRequest
from train_core.storage.objects.digests import digest_of
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run

SOURCE = "from tests.engine.tiny import Tiny as Mine  # noqa: F401\n\nclass Own(Mine): ...\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a workload that nobody has imported yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / f"own_{uuid.uuid4().hex}.py"
    file.write_text(SOURCE)
    return file


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_source_file_and_the_commit_that_tracks_it_are_told(module: Path) -> None:
    git(module.parent, "init")
    git(module.parent, "add", module.name)
    git(module.parent, "commit", "-m", "mine")
    found = code_of(TrainConfig(workload=f"{module.stem}:Own"))
    assert found["workload"] == digest_of(SOURCE.encode())
    assert found["commit"] == git(module.parent, "rev-parse", "HEAD")


def test_a_repository_that_does_not_track_the_file_says_nothing_of_it(module: Path) -> None:
    git(module.parent, "init")
    git(module.parent, "commit", "--allow-empty", "-m", "others")
    assert code_of(TrainConfig(workload=f"{module.stem}:Own")).keys() <= {"evertrain", "workload"}


def test_without_git_all_else_is_told(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = code_of(TrainConfig(workload=f"{module.stem}:Own"))
    assert found["workload"] == digest_of(SOURCE.encode())
    assert "commit" not in found


@pytest.mark.promise("record")
def test_run_json_has_it(tmp_path: Path) -> None:
    config = TrainConfig(workload="tests.engine.tiny:Tiny", batch_size=32, gpus_per_worker=0)
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    folder = RunFolder(str(tmp_path), "run")
    checked = check(folder, request)
    create_run(folder, new_record(request, config, checked.datasets))
    tiny = Path(__file__).parents[1] / "tiny.py"
    assert folder.record().code["workload"] == digest_of(tiny.read_bytes())
