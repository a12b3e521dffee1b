from __future__ import annotations

import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from evertrain_flows.parameters import RetrainParameters
from evertrain_tasks.driver_session.session import Session, open_session, session_of
from tests.asked import train
from train_core.errors import StageError, StoppedError, UserCodeError
from train_core.policy.end_status import EndStatus
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder


def test_a_task_outside_of_its_flow_starts_no_driver(tmp_path: Path) -> None:
    request = RetrainParameters(run="r", storage=str(tmp_path)).request()
    with pytest.raises(RuntimeError, match="no session is open for run 'r'"):
        session_of(request)
    assert list(tmp_path.iterdir()) == []


def test_flows_with_equal_requests_have_a_session_each(tmp_path: Path) -> None:
    request = RetrainParameters(run="r", storage=str(tmp_path), tracking_uri="").request()
    together = threading.Barrier(2, timeout=60)

    def flow() -> tuple[Session, Session]:
        with open_session(request) as session:
            together.wait()
            session.begin(lambda _: session_of(request))
            of_stages = session.thread.result()
            together.wait()
            session.detach()
        return session, of_stages

    with ThreadPoolExecutor(2) as threads:
        flows = [threads.submit(flow) for _ in range(2)]
    (first, of_first), (second, of_second) = (one.result() for one in flows)
    assert first is not second
    assert of_first is first
    assert of_second is second


def test_a_flow_in_another_thread_has_the_session_that_is_attached_even_once_closed(
    tmp_path: Path,
) -> None:
    request = RetrainParameters(run="r", storage=str(tmp_path), tracking_uri="").request()
    same = RetrainParameters(run="r", storage=str(tmp_path), tracking_uri="").request()

    def flow(session: Session) -> Session:
        with session.attached(), open_session(same) as found:
            return found

    with open_session(request) as session, ThreadPoolExecutor(1) as thread:
        session.detach()
        assert thread.submit(flow, session).result() is session
        with pytest.raises(StoppedError):
            session_of(request)
        other = request.model_copy(update={"run": "other"})
        with pytest.raises(RuntimeError, match="no session is open for run 'other'"):
            session_of(other)


@pytest.mark.promise("driver-dies")
def test_a_dead_driver_is_replaced_for_the_next_try(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"run": "r", "storage": str(tmp_path), "tracking_uri": "", "num_workers": 1}
    request = RetrainParameters(**given).request()
    lines: list[str] = []
    with suppress(UserCodeError), open_session(request) as session:
        assert session_of(request) is session
        session.log.listen(lines.append)
        session.log.send_to(logging.getLogger("a flow run"))
        caplog.set_level(logging.INFO, "a flow run")
        assert not session.prepared().resumed
        with session.running("train") as driver:
            os.kill(driver.carrier.process.pid, signal.SIGKILL)
            driver.carrier.process.wait()
            with pytest.raises(StageError, match="ended unexpectedly"):
                train(driver)
        with session.running("train") as replaced:
            assert replaced is not driver
            assert replaced.prepared().resumed
        with session.running("train"):
            raise UserCodeError("train", "rank 1: KeyError: 'x'", "Traceback: in loss")
    # The log has the first failed rank's traceback, and the run says how it ended.
    assert "Traceback: in loss" in lines
    store = RunFolder(str(tmp_path), "r").store
    assert lease.end_of(store, lease.newest_attempt(store)) == EndStatus.FAILED
    levels = {one.getMessage(): one.levelno for one in caplog.records if one.name == "a flow run"}
    again = "warning: the driver ended; another one goes on with the run"
    assert levels[again] == logging.WARNING
    assert levels["Traceback: in loss"] == logging.INFO
    assert set(session.seconds) == {"prepare", "train"}
    with pytest.raises(RuntimeError, match="no session"):
        session_of(request)


@pytest.mark.slow
def test_one_that_dies_in_its_checks_is_replaced_too(tmp_path: Path) -> None:
    request = RetrainParameters(run="r", storage=str(tmp_path), tracking_uri="").request()
    with open_session(request) as session:
        os.kill(session._driver.carrier.process.pid, signal.SIGKILL)
        with pytest.raises(StageError, match="ended unexpectedly"):
            session.prepared()
        assert not session.prepared().resumed
