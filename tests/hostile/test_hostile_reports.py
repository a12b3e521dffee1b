"""`evertrain mirror` of a run whose report.json is no report: one line says which file, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertrain_flows.cli.app import main
from tests.hostile.spoiling import KNOWN, Spoil, has_bytes, says
from tests.hostile.whole_run import whole_run
from train_core.errors import CheckpointError, ConfigError
from train_core.storage.run_folder import RunFolder
from train_core.tracking.delivery.catch_up import catch_up

REPORT = "report.json"
MEND = ". Delete it: `evertrain runs resume run` writes it anew"
DAMAGED: dict[str, tuple[Spoil, str]] = {
    "garbage": (has_bytes(REPORT, b"x"), ": not the report of a run: Expecting value"),
    "empty": (has_bytes(REPORT, b""), ": not the report of a run: Expecting value"),
    "an object": (has_bytes(REPORT, b"{}"), ": not the report of a run: run: Field required"),
    "lacks fields": (says(REPORT, "format", 1), ": not the report of a run: uri: Field required"),
    "a pipe": (KNOWN[f"{REPORT} is a pipe"], " is a pipe and no file"),
    "a folder": (KNOWN[f"{REPORT} is a folder"], " is a folder and no file"),
    "a link": (KNOWN[f"{REPORT} is a link"], " is reached by the link "),
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return whole_run(str(tmp_path / "runs"))


@pytest.mark.parametrize("name", DAMAGED)
def test_a_report_that_cannot_be_read_is_named_with_what_mends_it(
    folder: RunFolder, tmp_path: Path, name: str
) -> None:
    spoil, why = DAMAGED[name]
    spoil(folder, tmp_path)
    with pytest.raises(CheckpointError) as refused:
        catch_up(folder, f"sqlite:///{tmp_path}/mlflow.db")
    message = str(refused.value)
    assert message.startswith(folder.store.uri(REPORT) + why)
    assert message.endswith(MEND)
    assert "\n" not in message


def test_a_report_of_a_newer_version_is_not_to_be_deleted(
    folder: RunFolder, tmp_path: Path
) -> None:
    says(REPORT, "format", 2)(folder, tmp_path)
    with pytest.raises(ConfigError, match=r"report\.json has format 2, .*: use the version") as got:
        catch_up(folder, f"sqlite:///{tmp_path}/mlflow.db")
    assert "elete" not in str(got.value)


def test_the_command_ends_in_one_line(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    command = ["mirror", "run", "--storage", folder.storage, "--tracking-uri", uri]
    assert main(command) == 2
    told = capsys.readouterr().err
    begin = f"evertrain: {folder.store.uri(REPORT)}: not the report of a run: "
    assert told.startswith(begin)
    assert told.endswith(MEND + "\n")
    assert told.count("\n") == 1
    assert "pydantic" not in told
