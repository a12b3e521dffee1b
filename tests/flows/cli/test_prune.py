"""`evertrain prune` on run folders as a training leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evertrain_flows.cli.app import main
from tests.commands import said_by
from tests.storage.coordination.test_lease import driver_of
from tests.storage.samples import commit, manifest, record, save
from train_core.storage.coordination import lease, pins
from train_core.storage.coordination.holder import Holder
from train_core.storage.objects.store import Store
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, create_run, quarantine


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Checkpoints of the steps 10 (the best), 20, 30, 40, and what a dead attempt left."""
    folder = RunFolder(str(tmp_path), "run")
    create_run(folder, record(keep_last=2, keep_best=1))
    begin_attempt(folder).release()
    save(folder, 10, 1)
    changed = {"metrics": {"validation/accuracy": 0.9}}
    RunWriter(folder, 1).commit(manifest(10, 1).model_copy(update=changed))
    for step in (20, 30, 40):
        commit(folder, step, 1)
    folder.store.write("journal/steps-00000001-00000001-a0001.jsonl", b"{}\n")
    save(folder, 50, 1)
    return folder


def evertrain(folder: RunFolder, *arguments: str) -> int:
    return main(["prune", "run", "--storage", folder.storage, *arguments])


def printed(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], *arguments: str
) -> list[dict[str, Any]]:
    assert evertrain(folder, "--json", *arguments) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def gone(rows: list[dict[str, Any]]) -> list[str]:
    return [row["what"] for row in rows if row["verdict"] != "stays"]


def steps(folder: RunFolder) -> list[int]:
    return [one.name.step for one in folder.checkpoints()]


def files(folder: RunFolder) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in Path(folder.url).rglob("*")}


@pytest.mark.promise("prune")
def test_a_dry_run_tells_what_would_go_and_why_the_others_stay_and_writes_nothing(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(folder)
    rows = printed(folder, capsys, "--dry-run")
    assert [(row["what"], row["verdict"], row["why"]) for row in rows] == [
        ("step-00000010-a0001", "stays", "among the best 1 by validation/accuracy"),
        ("step-00000020-a0001", "goes", "no rule keeps it"),
        ("step-00000030-a0001", "stays", "among the last 2"),
        ("step-00000040-a0001", "stays", "the newest: a resume begins here; among the last 2"),
        ("checkpoints/step-00000050-a0001", "goes", "never committed, or half deleted"),
    ]
    assert files(folder) == before
    assert evertrain(folder, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "among the best 1 by validation/accuracy" in shown
    assert "goes" in shown


@pytest.mark.promise("prune")
def test_pruning_deletes_what_the_dry_run_told_and_frees_the_run(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    announced = gone(printed(folder, capsys, "--dry-run"))
    rows = printed(folder, capsys)
    assert gone(rows) == announced
    assert {row["verdict"] for row in rows} == {"stays", "deleted"}
    assert steps(folder) == [10, 30, 40]
    assert folder.store.names("checkpoints") == [f"step-{step:08d}-a0001" for step in steps(folder)]
    assert lease.newest_attempt(folder.store) == 2
    assert lease.holder_of(folder.store) is None
    assert gone(printed(folder, capsys)) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--keep-last", "1"], [10, 40]),
        (["--keep-last", "9"], [10, 20, 30, 40]),
        (["--keep-last", "1", "--keep-best", "2"], [10, 40]),  # of equal ones the later is best
        (["--keep-last", "1", "--keep-best", "4"], [10, 20, 30, 40]),
        (["--keep-last", "1", "--keep-every-steps", "20"], [10, 20, 40]),
        (["--keep-newer-than-s", "1"], [10, 30, 40]),
        (["--keep-newer-than-s", "1e12"], [10, 20, 30, 40]),
    ],
)
def test_the_rules_of_one_call_replace_the_runs_own(
    folder: RunFolder, arguments: list[str], expected: list[int]
) -> None:
    assert evertrain(folder, *arguments) == 0
    assert steps(folder) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep-last", "0"], "keep_last: Input should be greater than or equal to 1, got '0'"),
        (["--keep-best", "0"], "keep_best: Input should be greater than or equal to 1, got '0'"),
        (["--keep-every-steps", "-1"], "keep_every_steps"),
        (["--keep-newer-than-s", "nan"], "keep_newer_than_s"),
    ],
)
def test_rules_that_keep_too_little_are_refused(
    folder: RunFolder, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evertrain(folder, *arguments) == 2
    assert message in capsys.readouterr().err
    assert steps(folder) == [10, 20, 30, 40]


@pytest.mark.parametrize("what", ["none", "run/step-00000010-a0001"])
def test_what_is_no_run_is_refused(
    folder: RunFolder, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", what, "--storage", folder.storage]) == 2
    assert repr(what) in capsys.readouterr().err
    assert steps(folder) == [10, 20, 30, 40]


@pytest.mark.promise("prune")
def test_a_run_that_is_driven_is_refused_and_a_dry_run_of_it_is_not(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    with driver_of(folder) as driver:
        assert said_by(driver) == "2"
        save(folder, 60, 2)
        assert evertrain(folder) == 2
        assert f"run 'run' is being driven by process {driver.pid}" in capsys.readouterr().err
        assert steps(folder) == [10, 20, 30, 40]
        announced = gone(printed(folder, capsys, "--dry-run"))
        # What the living driver is writing is none of it.
        assert announced == ["step-00000020-a0001", "checkpoints/step-00000050-a0001"]


def test_quarantined_checkpoints_are_shown_and_stay(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    quarantine(folder, CheckpointName(20, 1), "a flipped byte")
    rows = {row["what"]: row for row in printed(folder, capsys)}
    shown = rows["step-00000020-a0001"]
    assert (shown["kind"], shown["verdict"], shown["why"]) == (
        "quarantined",
        "stays",
        "a flipped byte",
    )
    assert folder.store.names("checkpoints/step-00000020-a0001") == [
        "manifest.json",
        "model.safetensors",
        "quarantined.json",
    ]


def test_the_reports_best_and_what_is_read_stay(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.store.write("report.json", b'{"best": {"name": "step-00000020-a0001"}}')
    with pins.pinned(folder.store, [CheckpointName(30, 1)], "infer"):
        rows = {row["what"]: row["why"] for row in printed(folder, capsys, "--keep-last", "1")}
        assert steps(folder) == [10, 20, 30, 40]
    assert rows["step-00000020-a0001"] == "the best of report.json"
    assert rows["step-00000030-a0001"].startswith("pinned: infer")


def test_pins_of_other_machines_count_until_they_are_known_to_be_over(folder: RunFolder) -> None:
    holder = Holder(host="far", machine="another", pid=1, process_started=0.0, token="t")
    pin = pins.Pin(why="infer", created_at="2026-01-01T00:00:00Z", holder=holder)
    here = pins.pin(folder.store, CheckpointName(30, 1), "me", "I look at it", is_lasting=True)
    folder.store.write("pins/step-00000020-a0001/infer-1.json", pin.model_dump_json().encode())
    assert evertrain(folder, "--keep-last", "1") == 0
    assert steps(folder) == [10, 20, 30, 40]
    assert evertrain(folder, "--keep-last", "1", "--ignore-pins-elsewhere") == 0
    assert steps(folder) == [10, 30, 40]
    assert folder.store.exists(here)


@pytest.mark.promise("release-models")
@pytest.mark.slow
def test_where_mlflow_cannot_be_asked_nothing_is_deleted(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    pins.pin(folder.store, CheckpointName(20, 1), pins.MLFLOW_MODEL, "its model", is_lasting=True)
    nowhere = f"sqlite:///{folder.storage}/none.db"
    assert evertrain(folder, "--release-models", "--tracking-uri", nowhere) == 2
    assert "there is no MLflow database" in capsys.readouterr().err
    assert steps(folder) == [10, 20, 30, 40]
    assert not Path(folder.storage, "none.db").exists()
    assert lease.newest_attempt(folder.store) == 1


def test_the_retention_rules_are_parameters_of_retrain(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["retrain", "--help"])
    shown = capsys.readouterr().out
    assert "--keep-every-steps" in shown
    assert "--keep-newer-than-s" in shown


def test_a_run_can_be_named_by_its_address(folder: RunFolder) -> None:
    assert main(["prune", folder.url]) == 0
    assert steps(folder) == [10, 30, 40]
    assert Store(folder.storage).names() == ["run"]
