"""The look for leaks sees each kind of leak."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from tests.plugins.leaks import Belongings


def test_what_ends_in_time_is_no_leak() -> None:
    before = Belongings.now()
    threading.Thread(target=lambda: None).start()
    assert before.added(within_s=5) == []


def test_a_thread_that_stays_is_named() -> None:
    before = Belongings.now()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-alone")
    thread.start()
    assert before.added(within_s=0) == ["thread left-alone"]
    stop.set()
    thread.join()


def test_a_process_that_stays_is_named() -> None:
    before = Belongings.now()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert before.added(within_s=0) == [f"process {child.pid}"]


def test_a_file_that_stays_open_is_named(tmp_path: Path) -> None:
    before = Belongings.now()
    with (tmp_path / "open.txt").open("w"):
        assert before.added(within_s=0) == [f"file {tmp_path / 'open.txt'}"]
