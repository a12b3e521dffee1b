"""`evertrain verify-resume` as a user runs it: its verdict, its exit code and what it leaves."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import commands
from tests.flows.conftest import isolated
from train_core.storage.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# As short as a proof can be: two epochs of four steps, a checkpoint every second one.
ASKED = ("--steps", "8", "--batch-size", "32")

Prove = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def verify_resume(tmp_path: Path) -> Prove:
    """Runs the command in an empty folder, with an empty one for temporary files."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        workload = ("--workload", f"tests.rank.tiny:{name}")
        return commands.run(
            [*commands.EVERTRAIN, "verify-resume", *workload, *ASKED, *arguments],
            cwd=tmp_path / "here",
            env=isolated(tmp_path) | {"TMPDIR": str(tmp_path / "temporary")},
        )

    return run


def lies_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def proof_folder(tmp_path: Path) -> Path:
    """The one that the command left among the temporary files; torch may leave others there."""
    (found,) = (tmp_path / "temporary").glob("evertrain-proof-*")
    return found


@pytest.mark.promise("verify-resume")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_workload_that_resumes_exactly_ends_with_code_0_and_leaves_nothing(
    verify_resume: Prove, tmp_path: Path, workers: int
) -> None:
    done = verify_resume("Tiny", "--json", "--storage", "runs", "--workers", str(workers))
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    comparison, in_place = verdict.pop("comparison"), verdict.pop("in_place")
    assert in_place == (comparison if workers > 1 else None)
    assert verdict == {
        "identical": True,
        "workload": "tests.rank.tiny:Tiny",
        "workers": workers,
        "workers_after": 1,
        # Three fifths of eight; a checkpoint every second step.
        "killed_after": 4,
        "resumed_after": 4,
        "resumed_differs": None,
        "in_place_differs": None,
        "not_in_place": "" if workers > 1 else "there is one worker, and nobody survives it",
        "plain_differs": None,
        "not_plain": "",
        "cause": "",
    }
    # Eight steps and the ends of two epochs.
    assert (comparison["steps"], comparison["num_entries"]) == ([2, 4, 6, 8], 10)
    assert comparison["num_validations"] == 2
    assert comparison["metric"] is comparison["state"] is None
    assert list((tmp_path / "temporary").glob("evertrain-*")) == []
    assert list((tmp_path / "here").glob("runs/*")) == []


def test_one_that_does_not_ends_with_code_1_and_the_first_difference(
    verify_resume: Prove, tmp_path: Path
) -> None:
    done = verify_resume("Undetermined", "--workers", "1", "--storage", "runs", "--keep")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("different  tests.rank.tiny:Undetermined: 1 workers, killed")
    # The hook draws after the first step; the first checkpoint is of the second.
    assert "\nfirst metric  step 2, train/loss: A " in done.stdout
    first = re.search(
        r"\nfirst tensor  step 2, model/0\.weight \[0, 0\]: A (\S+), B (\S+)\n", done.stdout
    )
    assert first
    assert first[1] != first[2]
    assert "\nsince      step 1: model/0.weight\n" in done.stdout
    assert "\nnot plain  Plain PyTorch gives another result, since step 1: model/0" in done.stdout
    assert "two trainings from the same seed are not the same" in done.stdout
    # A line for each of the trainings, where there is no terminal.
    assert [line.partition(",")[0] for line in done.stderr.splitlines()] == [
        *("undisturbed", "to be killed", "resumed", "in plain PyTorch"),
    ]
    logs = proof_folder(tmp_path)
    runs = tmp_path / "here" / "runs" / logs.name
    assert done.stdout.endswith(f"The runs are in {runs}, their logs in {logs}\n")
    assert {path.name for path in logs.glob("*.log")} == {
        *("undisturbed.log", "killed.log", "resumed.log"),
    }
    for name in ("undisturbed", "resumed"):
        kept = RunFolder(str(runs), name).checkpoints()
        assert [one.manifest.step for one in kept] == [2, 4, 6, 8]


def test_without_a_storage_both_runs_lie_beside_their_logs(
    verify_resume: Prove, tmp_path: Path
) -> None:
    done = verify_resume("Tiny", "--workers", "1", "--json", "--keep")
    assert done.returncode == 0, done.stderr
    folder = str(proof_folder(tmp_path))
    verdict = json.loads(done.stdout)
    assert (verdict["identical"], verdict["folder"], verdict["storage"]) == (True, folder, folder)
    assert {"resumed", "undisturbed", "killed.log"} <= set(lies_in(Path(folder)))
    assert lies_in(tmp_path / "here") == []


def test_a_training_that_fails_by_itself_ends_with_code_2_and_leaves_its_log(
    verify_resume: Prove, tmp_path: Path
) -> None:
    done = verify_resume("Buggy", "--storage", "runs")
    assert done.returncode == 2
    log = proof_folder(tmp_path) / "undisturbed.log"
    (line,) = [line for line in done.stderr.splitlines() if "KeyError" in line]
    assert str(log) in line
    assert "in loss" in log.read_text()
    assert list((tmp_path / "here").glob("runs/*")) == []
