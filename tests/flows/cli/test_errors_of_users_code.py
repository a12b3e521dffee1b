"""An error of the user's code ends the command in a line that says where it is, and what next."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertrain_flows.cli.run_pipeline import saying_what_next
from tests.flows.conftest import Evertrain
from tests.rank.alone import create
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
    log = tmp_path / "first.log"
    log.touch()
    with pytest.raises(StageError) as raised, saying_what_next(folder, log):
        raise BUG
    assert str(raised.value) == (
        f"train: rank 0: KeyError: 'lr' (table.py, line 41, in train) (log: {log}). "
        f"Correct the code: `evertrain runs resume first{where}` goes on"
    )
    assert raised.value.traceback == "a traceback"


@pytest.mark.parametrize("error", [BUG, StageError("evaluate", "Ray did not start")])
def test_without_a_run_or_a_bug_only_the_log_is_named(tmp_path: Path, error: StageError) -> None:
    folder = RunFolder(str(tmp_path), "first")
    log = tmp_path / "first.log"
    with pytest.raises(StageError) as raised, saying_what_next(folder, log):
        raise error
    assert str(raised.value) == str(error), "a log that is not there must not be named"
    log.touch()
    with pytest.raises(StageError) as raised, saying_what_next(folder, log):
        raise error
    assert str(raised.value) == f"{error} (log: {log})"


BROKEN = """
from train_core.workloads.digits import Digits


class InDataset(Digits):
    def dataset(self, split):
        table = {"pixels": 1}
        return table["no_such_column"]


class InMetrics(Digits):
    def metrics(self):
        return 1 / 0
"""


@pytest.mark.slow
@pytest.mark.promise("who-tries-again")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("InDataset", "KeyError: 'no_such_column'{} (broken.py, line 8, in dataset)"),
        ("InMetrics", "ZeroDivisionError: division by zero{} (broken.py, line 13, in metrics)"),
    ],
)
def test_an_error_before_the_training_names_its_line_and_a_log_with_the_traceback(
    name: str, message: str, evertrain: Evertrain, home: Path
) -> None:
    (home / "broken.py").write_text(BROKEN)
    done = evertrain("retrain", "--run", f"in-{name}", "--workload", f"broken:{name}")
    log = home / ".evertrain" / "logs" / f"in-{name}.log"
    note = ", in the train split" if name == "InDataset" else ""
    assert done.stderr == f"evertrain: prepare: {message.format(note)} (log: {log})\n"
    assert done.returncode == 2
    written = log.read_text()
    assert "Traceback (most recent call last)" in written
    assert written.endswith(f"prepare: {message.format(note)}\n")
