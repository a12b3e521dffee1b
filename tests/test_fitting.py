"""Training from a program, without Prefect."""

from __future__ import annotations

from pathlib import Path

import pytest

import train_core
from tests.storage.samples import record
from train_core import TrainConfig, extend_run, fit, fork_run, infer, open_run
from train_core.errors import ConfigError
from train_core.rank.data.recorded_workload import load_recorded
from train_core.scoring.evaluate import load_model
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
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, epochs=1)
    first = fit(config, storage=str(tmp_path), run="run", on_log=None)
    longer = extend_run(open_run(str(tmp_path), "run"), "+1", on_log=None)
    assert longer.step == 2 * first.step


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.promise("fitted")
def test_what_was_fitted_follows_the_weights(tmp_path: Path) -> None:
    def vocabulary(run: str) -> list[str]:
        folder = RunFolder(str(tmp_path), run)
        found: list[str] = load_recorded(folder, folder.record().config).fitted["vocabulary"]
        return found

    storage = str(tmp_path)
    config = TrainConfig(
        workload="tests.rank.tagger:Tagger",
        batch_size=16,
        epochs=1,
        num_workers=2,
        monitor="validation/loss",
        monitor_order="min",
    )
    fit(config, storage=storage, run="first", on_log=None)
    other = config.model_copy(update={"settings": {"num_train": 49}, "init_from": "first"})
    fit(other, storage=storage, run="second", on_log=None)
    assert vocabulary("second") == vocabulary("first")
    step = open_run(storage, "first").latest().step
    forked = fork_run(open_run(storage, "first"), step, "forked")
    extend_run(forked, "+1", on_log=None)
    assert vocabulary("forked") == vocabulary("first")
    folder = RunFolder(storage, "second")
    workload, _, _ = load_model(folder.url, other, open_run(storage, "second").latest().name)
    assert workload.fitted["vocabulary"] == vocabulary("first")
    # A run of `fit` has no report, and is finished all the same.
    scored = infer("validation", run="first", storage=storage, on_log=None)
    assert scored.checkpoint.name == open_run(storage, "first").best().name
