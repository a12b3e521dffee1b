from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from flows.parameters import RetrainParameters
from tasks.session import open_session, session_of
from train_core.errors import StageError, UserCodeError


def test_a_task_outside_of_its_flow_starts_no_driver(tmp_path: Path) -> None:
    request = RetrainParameters(run="r", storage=str(tmp_path)).request()
    with pytest.raises(RuntimeError, match="no session is open for run 'r'"):
        session_of(request)
    assert list(tmp_path.iterdir()) == []


def test_a_dead_driver_is_replaced_for_the_next_try(tmp_path: Path) -> None:
    request = RetrainParameters(run="r", storage=str(tmp_path), tracking_uri="").request()
    lines: list[str] = []
    with open_session(request) as session:
        assert session_of(request) is session
        session.listen(lines.append)
        assert not session.prepared().resumed
        with session.running("train") as driver:
            os.kill(driver._process.pid, signal.SIGKILL)
            driver._process.wait()
            with pytest.raises(StageError, match="ended unexpectedly"):
                driver.train()
        with session.running("train") as replaced:
            assert replaced is not driver
            assert replaced.prepared().resumed
    assert set(session.seconds) == {"prepare", "train"}
    with pytest.raises(RuntimeError, match="no session"):
        session_of(request)


def test_a_driver_that_dies_in_its_checks_is_replaced_for_the_next_try(tmp_path: Path) -> None:
    request = RetrainParameters(run="r", storage=str(tmp_path), tracking_uri="").request()
    with open_session(request) as session:
        os.kill(session._driver._process.pid, signal.SIGKILL)
        with pytest.raises(StageError, match="ended unexpectedly"):
            session.prepared()
        assert not session.prepared().resumed


def test_what_the_first_rank_that_failed_says_ends_the_log(tmp_path: Path) -> None:
    request = RetrainParameters(run="r", storage=str(tmp_path), tracking_uri="").request()
    lines: list[str] = []
    with open_session(request) as session:
        session.listen(lines.append)
        with pytest.raises(UserCodeError), session.running("train"):
            raise UserCodeError("train", "rank 1: KeyError: 'x'", "Traceback: in loss")
        assert lines[-1] == "Traceback: in loss"
