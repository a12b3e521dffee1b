"""A listing tells what it cannot read in that one's row; nothing is deleted through a link."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evertrain_flows.cli.app import main
from tests.client.grown import commit, contents, create
from tests.hostile.whole_run import BEST, NEWEST, STEPS, reseal, whole_run
from train_core.client.run_summaries import list_runs, run_status
from train_core.client.runs import delete_run, fork_run, open_run, prune_run
from train_core.errors import ConfigError
from train_core.storage.records.journal import Entry
from train_core.storage.records.manifest import FileEntry, ReportedFolder
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import quarantine

MIDDLE = BEST


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return whole_run(str(tmp_path_factory.mktemp("storage")))


@pytest.fixture
def folder(template: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(template.url, tmp_path / "runs" / "run")
    return RunFolder(str(tmp_path / "runs"), "run")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def make_newer(folder: RunFolder, checkpoint: str) -> None:
    reseal(folder, f"checkpoints/{checkpoint}/manifest.json", lambda one: one | {"format": 2})


@pytest.mark.promise("faults-in-rows", "newer-format")
def test_one_manifest_of_a_newer_format_blocks_no_command_that_looks(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    make_newer(folder, NEWEST)
    storage = ("--storage", folder.storage)
    rows = printed(capsys, "ls", folder.url)
    assert [row["checkpoint"] for row in rows] == [str(CheckpointName(step, 1)) for step in STEPS]
    assert ["has format 2" in row.get("fault", "") for row in rows] == [False, False, True]
    (run,) = printed(capsys, "runs", "list", *storage)
    assert (run["step"], run["state"].startswith("cannot be continued: ")) == (4, True)
    assert printed(capsys, "runs", "status", "run", *storage)["checkpoints"] == 2
    assert printed(capsys, "show", "run", *storage)["name"] == "run"
    assert printed(capsys, "show", f"run/{MIDDLE}", *storage)["step"] == 4
    verdicts = {row["what"]: row["verdict"] for row in pruned(folder, capsys)}
    assert verdicts[NEWEST] == "stays"
    assert fork_run(folder, at=4).latest().step == 4
    assert open_run(folder.url).metrics.index[-1] == 4
    whole = f"{folder.url}/{MIDDLE}"
    with pytest.raises(SystemExit, match="1"):
        main(["diff", folder.url, folder.url])
    told = " ".join(capsys.readouterr().out.split())
    assert "identical" in told
    assert f"Not compared: {folder.url}/checkpoints/{NEWEST}/manifest.json has format 2" in told
    assert main(["export", whole, str(Path(folder.storage, "of-4.safetensors"))]) == 0
    # Without a report a run is its newest checkpoint, which cannot be read.
    capsys.readouterr()
    Path(folder.url, "report.json").unlink()
    assert main(["export", folder.url, str(Path(folder.storage, "newest.safetensors"))]) == 2
    assert f"To use an older one, name it: run/{MIDDLE}" in capsys.readouterr().err


def test_the_name_that_a_function_gave_its_folder_is_listed_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = create(str(tmp_path), "run", train_fn="functions:train", workload="")
    for step, name in ((2, ""), (4, "own-name")):
        reported = ReportedFolder(name=name, world_size=1)
        files = tuple(FileEntry.of(f"files/{file}", data) for file, data in contents(step).items())
        entries = [Entry(step=step, time=step, metrics={"loss": 0.5})]
        # A metric of the column's name does not take its place.
        metrics = {"loss": 0.5, "reported as": 7.0}
        commit(folder, step, entries, folder.newest(), metrics, reported=reported, files=files)
    first, second = printed(capsys, "ls", folder.url)
    assert first["reported as"] == 7.0
    assert second["reported as"] == "own-name"
    assert main(["ls", folder.url]) == 0
    assert "own-name" in capsys.readouterr().out
    shown = printed(capsys, "show", f"run/{second['checkpoint']}", "--storage", folder.storage)
    assert shown["reported"]["name"] == "own-name"
    assert main(["show", f"run/{second['checkpoint']}", "--storage", folder.storage]) == 0
    assert "own-name" in capsys.readouterr().out


def pruned(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> Any:
    return printed(capsys, "prune", "run", "--storage", folder.storage, "--dry-run")


@pytest.mark.promise("newer-format")
def test_what_changes_a_run_refuses_a_newer_format_and_loses_nothing(folder: RunFolder) -> None:
    make_newer(folder, NEWEST)
    before = sorted(map(str, Path(folder.url).rglob("*.*")))
    with pytest.raises(ConfigError, match="has format 2"):
        prune_run(folder)
    after = sorted(map(str, Path(folder.url).rglob("*.*")))
    assert [one for one in after if "/lease/" not in one] == [
        one for one in before if "/lease/" not in one
    ]


@pytest.mark.promise("faults-in-rows")
def test_checkpoints_that_are_not_good_are_listed_with_what_is_wrong(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    quarantine(folder, CheckpointName(2, 1), "a flipped bit")
    folder.store.write(f"checkpoints/{NEWEST}/manifest.json", b"garbage")
    first, good, last = printed(capsys, "ls", folder.url)
    assert (first["step"], first["fault"], first["epoch"]) == (
        2,
        "quarantined: a flipped bit",
        None,
    )
    assert "fault" not in good
    assert last["fault"].startswith("damaged: ")
    assert main(["ls", folder.url]) == 0
    assert "a flipped bit" in capsys.readouterr().out


@pytest.mark.promise("faults-in-rows")
@pytest.mark.parametrize("file", ["run.json", "report.json"])
@pytest.mark.parametrize("content", [b"", b'{"format": 2}', b"[1]", b'{"a": 1, "a": 2}'])
def test_a_run_that_cannot_be_read_hides_no_other(
    folder: RunFolder, tmp_path: Path, file: str, content: bytes
) -> None:
    shutil.copytree(folder.url, tmp_path / "runs" / "good")
    folder.store.write(file, content)
    states = {one.run: one.state for one in list_runs(folder.storage)}
    assert states["good"] == "finished"
    assert states["run"].startswith("cannot be read: ")
    assert file in states["run"]


def test_each_document_of_a_run_is_read_once_for_the_list(
    folder: RunFolder, tmp_path: Path
) -> None:
    for number in range(9):
        shutil.copytree(folder.url, tmp_path / "runs" / f"run-{number}")
    with files_opened() as names:
        assert len(list_runs(folder.storage)) == 10
    counted = Counter(name for name in names if name.endswith(".json"))
    assert counted["manifest.json"] == 10 * len(STEPS)
    assert {counted[name] for name in ("run.json", "report.json")} == {10}
    assert max(counted.values()) <= 10 * len(STEPS)


@contextmanager
def files_opened() -> Iterator[list[str]]:
    """The names of the files that this process opens meanwhile."""
    names: list[str] = []
    listening = True

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        # A hook cannot be taken away.
        if listening and event == "open" and isinstance(arguments[0], str):
            names.append(arguments[0].rpartition("/")[2])

    sys.addaudithook(hear)
    try:
        yield names
    finally:
        listening = False


@pytest.mark.parametrize("value", [True, "x", [1], {"a": 1}, 1.5, 10**300])
def test_what_a_record_says_of_its_data_is_shown_if_it_can_be(
    folder: RunFolder, value: object
) -> None:
    content = json.loads(folder.store.read("run.json"))
    content["datasets"] = {"train": {"samples": value, "digest": value}}
    folder.store.write("run.json", json.dumps(content).encode())
    assert run_status(folder).state == "finished"


def test_a_copied_checkpoint_does_not_count_as_the_step_of_its_name(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = "step-00000170-a0001"
    shutil.copytree(
        Path(folder.url, f"checkpoints/{NEWEST}"), Path(folder.url, "checkpoints", copied)
    )
    storage = ("--storage", folder.storage)
    assert printed(capsys, "runs", "status", "run", *storage)["step"] == STEPS[-1]
    (run,) = printed(capsys, "runs", "list", *storage)
    assert (run["step"], run["state"]) == (STEPS[-1], "finished")
    *_, last = printed(capsys, "ls", folder.url)
    assert (last["checkpoint"], last["epoch"]) == (copied, None)
    assert f"has the manifest of {NEWEST}" in last["fault"]


@pytest.mark.promise("untrusted-files")
def test_nothing_is_deleted_through_a_run_folder_that_is_a_link(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "run").symlink_to(folder.url)
    run = open_run(tmp_path / "linked", "run")
    before = sorted(Path(folder.url).rglob("*"))
    for act in (delete_run, prune_run):
        with pytest.raises(ConfigError, match=f"is a link to {folder.url}, and nothing is deleted"):
            act(run)
    storage = ("--storage", str(tmp_path / "linked"))
    for command in (["runs", "delete", "run", "--yes"], ["prune", "run"]):
        assert main([*command, *storage]) == 2
        assert "is a link to" in capsys.readouterr().err
    assert sorted(Path(folder.url).rglob("*")) == before
    assert (tmp_path / "linked" / "run").is_symlink()
    # It can be looked at.
    assert [one.step for one in run.checkpoints] == list(STEPS)
    assert [one.state for one in list_runs(str(tmp_path / "linked"))] == ["finished"]
