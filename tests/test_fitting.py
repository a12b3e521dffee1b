"""Training from a program, without Prefect."""

from __future__ import annotations

from pathlib import Path

import pytest

import train_core
from tests.storage.samples import record
from train_core import TrainConfig, extend_run, fit, open_run
from train_core.errors import ConfigError
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run


def test_every_public_name_of_train_core_can_be_imported() -> None:
    for name in train_core.__all__:
        assert getattr(train_core, name).__class__ is not None, name
    assert sorted(train_core.__all__, key=str.lower) == sorted(train_core._HOMES, key=str.lower)


def test_a_run_that_has_as_many_epochs_is_not_extended(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    create_run(folder, record("run"))
    epochs = folder.record().config.epochs
    with pytest.raises(ConfigError, match=f"has {epochs} epochs already"):
        extend_run(folder, str(epochs))


@pytest.mark.slow
def test_a_run_is_extended_from_a_program(tmp_path: Path) -> None:
    config = TrainConfig(workload="tests.engine.tiny:Tiny", batch_size=32, epochs=1)
    first = fit(config, storage=str(tmp_path), run="run", on_log=None)
    longer = extend_run(open_run(str(tmp_path), "run"), "+1", on_log=None)
    assert longer.step == 2 * first.step
