"""An error of the user's code ends the command in a line that says where it is, and what next."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertrain_flows.cli.run_pipeline import saying_what_next
from tests.engine.alone import create
from train_core import TrainConfig
from train_core.errors import StageError, UserCodeError
from train_core.storage.run_folder import RunFolder

BUG = UserCodeError("train", "rank 0: KeyError: 'lr' (table.py, line 41, in train)", "a traceback")


@pytest.mark.parametrize("is_default", [True, False])
def test_a_run_that_failed_by_the_users_code_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_default: bool
) -> None:
    where = "" if is_default else f" --storage {tmp_path}"
    if is_default:
        monkeypatch.setenv("EVERTRAIN_STORAGE", str(tmp_path))
    folder = RunFolder(str(tmp_path), "first")
    create(folder, TrainConfig(train_fn="some.module:function"))
    with pytest.raises(StageError) as raised, saying_what_next(folder, Path("/logs/first.log")):
        raise BUG
    assert str(raised.value) == (
        "train: rank 0: KeyError: 'lr' (table.py, line 41, in train) (log: /logs/first.log). "
        f"Correct the code: `evertrain runs resume first{where}` goes on"
    )
    assert raised.value.traceback == "a traceback"


@pytest.mark.parametrize("error", [BUG, StageError("evaluate", "Ray did not start")])
def test_without_a_run_or_a_bug_only_the_log_is_named(tmp_path: Path, error: StageError) -> None:
    folder = RunFolder(str(tmp_path), "first")
    with pytest.raises(StageError) as raised, saying_what_next(folder, Path("/logs/first.log")):
        raise error
    assert str(raised.value) == f"{error} (log: /logs/first.log)"
