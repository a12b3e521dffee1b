"""What workers of a pool are asked to run in tests."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from train_core.cluster.rank_order import Rank
from train_core.errors import UserCodeError, users_code


def double(number: int) -> tuple[int, int]:
    """The number twice, and by which process."""
    time.sleep(0.05)
    return 2 * number, os.getpid()


def pid() -> int:
    """By which process it was called."""
    return os.getpid()


def surroundings() -> tuple[dict[str, str], dict[str, int]]:
    """The environment variables of its process, and the threads that torch and libraries have."""
    import torch
    from threadpoolctl import threadpool_info

    threads = {one["filepath"]: one["num_threads"] for one in threadpool_info()}
    return dict(os.environ), threads | {"torch": torch.get_num_threads()}


def note_pid(mark: str) -> None:
    """Write by which process it was called."""
    Path(mark).write_text(str(os.getpid()))


def note_pid_and_wait(mark: str) -> None:
    """Write by which process it was called, and return once there is a file of that name."""
    note_pid(f"{mark}.pid")
    pid_after(mark)


def touch(mark: str) -> int:
    """Write a file of that name; by which process it was called."""
    Path(mark).touch()
    return os.getpid()


def pid_after(mark: str) -> int:
    """By which process it was called, once there is a file of that name."""
    while not Path(mark).exists():
        time.sleep(0.01)
    return os.getpid()


def die_after(mark: str) -> None:
    """Kills its process once there is a file of that name."""
    os.kill(pid_after(mark), signal.SIGKILL)


def die_once(number: int, mark: str) -> int:
    """Kills its process at the number 1, the first time."""
    return _signalled_once(number, mark, signal.SIGKILL)


def stop_once(number: int, mark: str) -> int:
    """Stops its process at the number 1, the first time: nobody wakes it up."""
    return _signalled_once(number, mark, signal.SIGSTOP)


def _signalled_once(number: int, mark: str, sent: signal.Signals) -> int:
    if number == 1 and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), sent)
    return number


def quit_measuring(number: int) -> None:
    """What a workload does that calls sys.exit() where it is evaluated."""
    with users_code("evaluate", f"shard {number}"):
        sys.exit("enough")


def get_sigterm(number: int) -> tuple[int, bool]:
    """Sends its own process SIGTERM; which one that is, and whether it runs in the main thread."""
    with users_code("evaluate", f"shard {number}"):
        os.kill(os.getpid(), signal.SIGTERM)
        return os.getpid(), threading.current_thread() is threading.main_thread()


def fail_after_the_others(rank: Rank) -> Any:
    """Rank 0 tells of a broken connection at once, rank 1 of its bug a little later."""
    if rank.rank == 0:
        raise ConnectionError("rank 0: gloo: closed by peer")
    time.sleep(0.3)
    raise UserCodeError("train", "rank 1: KeyError: 'x'")
