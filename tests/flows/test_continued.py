"""What is asked of a run that exists by who does not say everything again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.parameters import RetrainParameters
from train_core.engine.driver_stages import DriverStages
from train_core.errors import RunConflictError
from train_core.storage.run_folder import RunFolder

BEGUN = {
    "epochs": 4,
    "batch_size": 64,
    "num_shards": 2,
    "tracking_uri": "",
    "settings": {"width": 8},
    "runtime_env": {"working_dir": "s3://bucket/code.zip", "env_vars": {"TOKEN": "secret"}},
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


def begin(folder: RunFolder, **asked: Any) -> None:
    """As a driver does, which then ends before it trains."""
    parameters = RetrainParameters(run=folder.name, storage=folder.storage, **asked)
    driver = DriverStages()
    driver.prepare(parameters.continued().request().model_dump())
    driver.close("KILLED")


def test_a_run_goes_on_with_what_it_was_asked_last(folder: RunFolder) -> None:
    begin(folder, **BEGUN)
    begin(folder, epochs=8, num_workers=2)
    begin(folder)
    asked = RetrainParameters.of_run(folder)
    assert (asked.epochs, asked.num_workers, asked.batch_size) == (8, 2, 64)
    assert (asked.tracking_uri, asked.settings) == ("", {"width": 8})
    assert folder.record().config.epochs == 4
    assert folder.store.names("asked") == ["0002.json"]


def test_single_entries_are_added_and_secrets_are_asked_for_again(folder: RunFolder) -> None:
    begin(folder, **BEGUN)
    assert b"secret" not in folder.store.read("run.json")
    again = RetrainParameters(
        run="run", storage=folder.storage, runtime_env={"env_vars": {"TOKEN": "another"}}
    )
    assert again.continued().runtime_env == {
        "working_dir": "s3://bucket/code.zip",
        "env_vars": {"TOKEN": "another"},
    }


def test_what_may_not_change_is_refused_and_not_noted(folder: RunFolder) -> None:
    begin(folder, **BEGUN)
    with pytest.raises(RunConflictError, match="batch_size: was 64, asked for 32"):
        begin(folder, batch_size=32, epochs=9)
    assert RetrainParameters.of_run(folder).epochs == 4


def test_a_new_run_is_asked_what_was_said(tmp_path: Path) -> None:
    new = RetrainParameters(run="new", storage=str(tmp_path), epochs=3)
    assert new.continued() is new
    assert RetrainParameters(storage=str(tmp_path)).continued().run == ""
