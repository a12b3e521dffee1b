"""What `evertrain ls` lists for an address or a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.samples import record
from train_core.client.checkpoints import run_or_storage
from train_core.client.run_summaries import unfinished_or_next
from train_core.errors import ConfigError
from train_core.storage.records.names import REPORT_JSON
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run


def create(storage: Path, run: str) -> RunFolder:
    folder = RunFolder(str(storage), run)
    create_run(folder, record(run))
    return folder


def test_an_address_is_a_run_or_a_storage_and_a_name_is_a_run_of_the_default_storage(
    tmp_path: Path,
) -> None:
    default, other = tmp_path / "default", tmp_path / "other"
    create(default, "night")
    create(other, "day")
    for what, url in (("night", default / "night"), (f"{other}/day", other / "day")):
        found = run_or_storage(what, str(default))
        assert isinstance(found, RunFolder)
        assert found.url == str(url)
    assert run_or_storage(f"{other}/", str(default)) == str(other)


def test_only_the_default_storage_may_be_empty(tmp_path: Path) -> None:
    default = str(tmp_path / "default")
    assert run_or_storage(default, default) == default
    for nothing in (str(tmp_path / "nowhere"), "no-such-run", "Kein Lauf!"):
        with pytest.raises(ConfigError, match="there is nothing at"):
            run_or_storage(nothing, default)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ({}, "demo-001"),
        ({"demo-001": True}, "demo-002"),
        ({"demo-001": False}, "demo-001"),
        ({"demo-001": False, "demo-009": True}, "demo-010"),
        ({"demo-009": True, "demo-010": False, "digits-011": True}, "demo-010"),
        ({"demo-999": True}, "demo-1000"),
        ({"my-demo-007": True, "demo-07": True}, "demo-001"),
    ],
)
def test_the_last_numbered_run_is_continued_until_it_has_a_report(
    tmp_path: Path, runs: dict[str, bool], expected: str
) -> None:
    for run, is_finished in runs.items():
        folder = create(tmp_path, run)
        if is_finished:
            folder.store.write(REPORT_JSON, b"{}")
    assert unfinished_or_next(str(tmp_path), "demo").name == expected
