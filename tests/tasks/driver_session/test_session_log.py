from __future__ import annotations

import logging

import pytest

from evertrain_tasks.driver_session.session_log import SessionLog, run_logger
from train_core.text.log_lines import warning_in


def test_a_late_listener_gets_the_lines_before_it_without_their_colours() -> None:
    log, lines = SessionLog(), list[str]()
    log.add("\x1b[36m(Worker pid=1)\x1b[0m step 1")
    log.listen(lines.append)
    log.add_warning("the disk is full")
    assert lines == ["(Worker pid=1) step 1", "warning: the disk is full"]


def test_a_warning_that_a_progress_bar_has_moved_the_cursor_for_is_one() -> None:
    log, lines = SessionLog(), list[str]()
    log.listen(lines.append)
    # As Ray writes a worker's line after it has hidden two bars of Ray Data.
    line = "\x1b[A\x1b[36m(RayTrainWorker pid=7)\x1b[0m warning: several ranks"
    log.add(line)
    assert lines == ["(RayTrainWorker pid=7) warning: several ranks"]
    assert warning_in(line) == warning_in(lines[0]) == "several ranks"


@pytest.mark.promise("terminal", "secrets")
def test_lines_have_no_control_characters_no_passwords_and_an_end() -> None:
    log, lines = SessionLog(), list[str]()
    log.listen(lines.append)
    log.add("\x1b]0;title\x07 at http://me:pw@host\n\tline 2")
    log.add("x " * 100_000)
    assert lines[0] == "\\x1b]0;title\\x07 at http://***@host\n\tline 2"
    assert len(lines[1]) < 21_000


def test_a_listener_that_fails_is_left_out_and_the_others_get_every_line() -> None:
    log, calls, lines = SessionLog(), list[str](), list[str]()

    def fail(line: str) -> None:
        calls.append(line)
        raise OSError("no space left on device")

    log.listen(fail)
    log.listen(lines.append)
    for line in ("first", "second"):
        log.add(line)
    assert calls == ["first"]
    assert lines == ["first", "second"]


def test_warnings_are_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    log = SessionLog()
    caplog.set_level(logging.INFO, "a flow run")
    log.send_to(logging.getLogger("a flow run"))
    log.add("step 1")
    log.add_warning("the disk is full")
    assert [one.levelno for one in caplog.records] == [logging.INFO, logging.WARNING]


def test_outside_of_a_flow_run_the_logger_is_an_ordinary_one() -> None:
    assert run_logger() is logging.getLogger("evertrain_tasks")
