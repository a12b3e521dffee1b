"""Processes that fetch ahead and give nothing: the reason is told, and nobody waits in silence."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from tests import commands
from train_core.errors import UserCodeError
from train_core.rank.data import data_processes
from train_core.rank.data.data_processes import end_processes, load_ahead

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that gives nothing is looked at twice a second."""
    monkeypatch.setattr(data_processes, "POLL_S", 0.5)


SMALL = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
LARGE = """
import torch
from torch.utils.data import Dataset
from train_core.rank.data.data_processes import load_ahead

class Large(Dataset):
    def __getitem__(self, _):
        return "planned", {"x": torch.ones(3_000_000)}

raise next(load_ahead(Large(), range(4), num_processes=2, device=torch.device("cpu")))
"""


class Hanging(Dataset[Any]):
    """A second batch that comes when somebody has opened the pipe."""

    def __init__(self, pipe: Path) -> None:
        self._pipe = pipe

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            self._pipe.read_bytes()
        return "planned", {"x": torch.full((3,), index)}


@pytest.mark.promise("data-workers-told")
def test_a_batch_that_does_not_fit_into_shared_memory_is_an_error_with_a_remedy() -> None:
    own = ["unshare", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*own, SMALL], check=False).returncode:
        pytest.skip("only root gives a process a /dev/shm of its own")
    command = f"{SMALL} && exec {shlex.quote(sys.executable)} -c {shlex.quote(LARGE)}"
    done = commands.run([*own, command])
    last = done.stderr.strip().splitlines()[-1]
    assert "DataError: a batch of 12.0 MB does not fit into /dev/shm, which has 8." in last
    assert last.endswith("or set data_workers to 0")


@pytest.mark.promise("data-workers-told")
def test_a_process_that_hangs_is_told_with_the_line_that_it_is_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(data_processes, "TELL_AFTER_S", 1.0)
    pipe, told = tmp_path / "pipe", "the training waits for data process 1 for"
    os.mkfifo(pipe)

    class Release(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith(told):
                pipe.write_bytes(b"")

    handler = Release()
    logging.getLogger("train_core.data").addHandler(handler)
    loaded = load_ahead(Hanging(pipe), range(3), num_processes=2, device=CPU)
    found = [int(columns["x"][0]) for _, columns in loaded]
    logging.getLogger("train_core.data").removeHandler(handler)
    end_processes(loaded)
    assert found == [0, 1, 2]
    assert told in caplog.text
    assert re.search(r'File ".*", line \d+, in __getitem__', caplog.text)


@pytest.mark.promise("data-workers-told")
def test_a_process_that_hangs_is_an_error_with_the_line_that_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_processes, "HANGS_AFTER_S", 2.0)
    os.mkfifo(tmp_path / "pipe")
    loaded = load_ahead(Hanging(tmp_path / "pipe"), range(3), num_processes=2, device=CPU)
    try:
        assert next(loaded)[1]["x"].tolist() == [0, 0, 0]
        with pytest.raises(UserCodeError) as refused:
            next(loaded)
    finally:
        end_processes(loaded)
    said = str(refused.value)
    assert re.search(r"data process 1 hangs: for \d+ s no thread of it has run", said)
    assert re.search(r"test_silent_data_workers.py, line \d+, in __getitem__", said)


class Locked(Dataset[Any]):
    """A batch that needs a lock which another thread of the training held in the fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __getitem__(self, index: int) -> Any:
        with self._lock:
            return "planned", {"x": torch.full((3,), index)}


@pytest.mark.promise("data-workers-told")
def test_a_process_that_waits_for_a_lost_lock_is_an_error_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_processes, "LOCKED_AFTER_S", 1.0)
    loaded = load_ahead(Locked(), range(1), num_processes=1, device=CPU)
    try:
        with pytest.raises(UserCodeError, match=r"line \d+, in __getitem__\); it waits for a lock"):
            next(loaded)
    finally:
        end_processes(loaded)


class Slow(Dataset[Any]):
    """A batch that is looked for again and again, longer than a process may hang."""

    def __getitem__(self, index: int) -> Any:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            time.sleep(0.1)
        return "planned", {"x": torch.full((3,), index)}


def test_a_process_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_processes, "HANGS_AFTER_S", 2.0)
    loaded = load_ahead(Slow(), range(1), num_processes=1, device=CPU)
    assert next(loaded)[1]["x"].tolist() == [0, 0, 0]
    end_processes(loaded)


def test_what_the_processes_send_is_what_the_rank_would_fetch(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    pipe.write_bytes(b"")
    for num_processes in (0, 2):
        loaded = load_ahead(Hanging(pipe), range(3), num_processes=num_processes, device=CPU)
        assert [columns["x"].tolist() for _, columns in loaded] == [[n] * 3 for n in range(3)]
        end_processes(loaded)
