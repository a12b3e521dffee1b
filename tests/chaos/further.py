"""Blows that follow the first one, while a training recovers from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tests.chaos.pipeline import Started
from tests.chaos.standing import newest_step

ROUNDS = 4
_WORKER = "ray::TrainWorker"


def further_blows(which: str, running: Started, notes: Path) -> None:
    """Strike as `FURTHER` says; whoever is to be struck is waited for."""
    FURTHER[which](running, notes)


def _as_another_is_replaced(running: Started, notes: Path) -> None:
    """Rank 0, as the process in the place of rank 1 makes its model."""
    running.wait(lambda: _is_alive(_rank(notes, 1)))
    _kill(_rank(notes, 0))


def _one_after_the_other(running: Started, notes: Path) -> None:
    """Every rank by turns, each as soon as two more steps are done."""
    for number in range(ROUNDS):
        done = newest_step(notes)
        running.wait(lambda done=done: newest_step(notes) >= done + 2)
        _kill(_rank(notes, number % 2))


def _the_spare(running: Started, notes: Path) -> None:
    """The process that waits to be a rank."""
    running.wait(lambda: any(_spares(running, notes)))
    for spare in _spares(running, notes):
        _kill(spare)


FURTHER: dict[str, Callable[[Started, Path], None]] = {
    "rank 0 as it is replaced": _as_another_is_replaced,
    "every rank by turns": _one_after_the_other,
    "the spare": _the_spare,
}
"""Who is struck after rank 1 was."""


def _rank(notes: Path, rank: int) -> psutil.Process | None:
    """The process that is the rank, or was."""
    with suppress(psutil.NoSuchProcess, FileNotFoundError):
        return psutil.Process(int((notes / f"pid-{rank}").read_text()))
    return None


def _spares(running: Started, notes: Path) -> Iterator[psutil.Process]:
    """Workers that are no rank, of a training of two."""
    ranks = {one.pid for rank in (0, 1) if (one := _rank(notes, rank))}
    if not (_is_alive(_rank(notes, 0)) and _is_alive(_rank(notes, 1))):
        # One of them is about to be a rank.
        return
    for process in psutil.Process(running.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.pid not in ranks and process.cmdline()[:1] == [_WORKER]:
                yield process


def _is_alive(process: psutil.Process | None) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process is not None and process.status() != psutil.STATUS_ZOMBIE
    return False


def _kill(process: psutil.Process | None) -> None:
    with suppress(psutil.NoSuchProcess):
        if process is not None:
            process.kill()
