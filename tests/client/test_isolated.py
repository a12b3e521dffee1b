"""A function called in a process of its own: its result, its errors, what it prints, its death."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from pathlib import Path

import pytest

from train_core.client.isolated import isolated_call
from train_core.described_errors import FAILED
from train_core.differences import ValueDifference
from train_core.errors import RunBusyError, StageError


def difference(name: str, pairs: list[list[int]]) -> ValueDifference:
    sys.stdout.write("a user's module prints this\n")
    assert sys.stdin.read() == ""
    return ValueDifference(
        name=name, kind="values", a=[list(pair) for pair in pairs], b=os.getpid()
    )


def not_finite() -> list[float]:
    return [math.inf, math.nan]


def refuse(run: str) -> None:
    logging.getLogger("train_core.somewhere").warning("MLflow's alias %r stays", "champion")
    logging.getLogger("train_core.somewhere").info("nobody has to read this")
    logging.getLogger("mlflow").warning("nor this")
    raise RunBusyError(run, "somebody")


def fail() -> None:
    raise KeyError("epoch")


def end() -> None:
    sys.exit("as a module may as it is imported")


def die() -> None:
    sys.stderr.write("out of memory\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def end_at_once(code: int) -> None:
    os._exit(code)


def print_below() -> str:
    """As a library written in C, or a program that is started."""
    os.write(1, b"\xff printed\n")
    return "the answer"


def named(name: str) -> str:
    return f"{__name__}:{name}"


@pytest.mark.slow
def test_arguments_and_result_are_json() -> None:
    found = isolated_call(named("difference"), name="ü", pairs=[[1, 2], [3, 4]])
    difference = ValueDifference.model_validate(found)
    assert (difference.name, difference.a) == ("ü", [[1, 2], [3, 4]])
    assert difference.b != os.getpid()
    infinite, no_number = isolated_call(named("not_finite"))
    assert math.isinf(infinite)
    assert math.isnan(no_number)


def test_what_it_raises_is_raised_with_its_own_type_and_what_it_warns_of_is_warned_of_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(RunBusyError, match="driven by somebody") as busy:
        isolated_call(named("refuse"), run="night")
    assert busy.value.run == "night"
    assert [record.getMessage() for record in caplog.records] == ["MLflow's alias 'champion' stays"]
    with pytest.raises(StageError, match="fail: KeyError: 'epoch'") as failed:
        isolated_call(named("fail"))
    assert Path(__file__).name in failed.value.traceback
    with pytest.raises(StageError, match=r"end: it called sys.exit\('as a module may"):
        isolated_call(named("end"))


def test_a_process_that_dies_is_an_error_with_its_last_words() -> None:
    with pytest.raises(StageError, match="die: it ended with code -9") as died:
        isolated_call(named("die"))
    assert died.value.traceback == "out of memory\n"


@pytest.mark.parametrize("code", [0, FAILED])
def test_a_process_that_ends_by_itself_has_no_answer(code: int) -> None:
    with pytest.raises(StageError, match=f"ended with code {code}, without an answer"):
        isolated_call(named("end_at_once"), code=code)


def test_what_is_printed_below_python_is_no_part_of_the_answer() -> None:
    assert isolated_call(named("print_below")) == "the answer"
