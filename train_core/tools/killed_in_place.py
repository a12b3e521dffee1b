"""A training without Ray of which rank 0 is killed, and the other processes train on.

`train_in_place` starts a process for each rank, and one more, which takes the dead one's place:

    python -m train_core.tools.killed_in_place TASK.json HOST PORT RANK FIRST

FIRST is the first attempt in which the process is a rank: 1, or 2 for the one that takes the place.
The numbers that the attempts have in the run come by the store at HOST and PORT.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from train_core.config import LOCAL, TrainConfig
from train_core.entry_points import KILLED_IN_PLACE_RANK
from train_core.errors import AttemptLostError, StageError
from train_core.inside import environment_of
from train_core.rank.distributed.earlier_commit import post_earlier
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.rendezvous import (
    LOOPBACK,
    Membership,
    RendezvousStore,
    connect,
)
from train_core.rank.training import train
from train_core.requests import StandaloneTask, died_mark
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import begin_attempt, create_run, next_attempt
from train_core.tools.standalone import StandaloneTrainer, record_of, run_as_rank, with_epochs

_ATTEMPTS = "attempts"
"""The keys of the store below which the numbers of the attempts are."""
_POLL_S = 0.1


def train_in_place(task: StandaloneTask, task_file: Path, on_poll: Callable[[], None]) -> None:
    """Train to the end, in two attempts; `on_poll` is called now and then.

    Raises StageError if a process ended otherwise than it was to, and ConfigError for a bad
    workload.
    """
    config = task.config.model_copy(update={"ray_address": LOCAL})
    task = with_epochs(task.model_copy(update={"config": config}))
    task_file.write_text(task.model_dump_json(indent=1))
    folder = RunFolder(task.storage, task.run)
    create_run(folder, *record_of(task))
    store = RendezvousStore(LOOPBACK)
    held = begin_attempt(folder)
    try:
        _begin(store, task.run, "1", held.attempt, None)
        with _processes(store, task_file, config) as (first, *others):
            _wait(first, others, on_poll)
            if not died_mark(task_file).exists():
                raise StageError("in place", "rank 0 ended by itself")
            newest = next_attempt(folder, held)
            _begin(store, task.run, "2", held.attempt, newest)
            for process in others:
                _wait(process, others, on_poll)
    finally:
        held.release()
        store.close()


def _begin(
    store: RendezvousStore, run: str, which: str, attempt: int, newest: Commit | None
) -> None:
    """Let the ranks begin the attempt after that commit."""
    earlier: Future[Commit | None] = Future()
    earlier.set_result(newest)
    post_earlier(store, _group(run, attempt), earlier)
    store.post(_ATTEMPTS, which, str(attempt))


def _group(run: str, attempt: int) -> str:
    return f"{run}/{attempt}"


@contextmanager
def _processes(
    store: RendezvousStore, task_file: Path, config: TrainConfig
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks, and then the one that takes the place of rank 0; all are ended with the block."""
    host, port = store.address
    places = [*((rank, 1) for rank in range(config.num_workers)), (0, 2)]
    environment = environment_of("worker", OMP_NUM_THREADS=str(config.threads_per_worker))
    started: list[subprocess.Popen[bytes]] = []
    with task_file.with_suffix(".log").open("ab") as log:
        try:
            for rank, first in places:
                told = (str(task_file), host, str(port), str(rank), str(first))
                command = [sys.executable, "-m", KILLED_IN_PLACE_RANK, *told]
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                )
                started.append(process)
            yield started
        finally:
            for process in started:
                process.kill()
                process.wait()


def _wait(
    process: subprocess.Popen[bytes],
    others: list[subprocess.Popen[bytes]],
    on_poll: Callable[[], None],
) -> None:
    """Wait until the process has ended. Raises StageError if one of the others failed."""
    while not any(one.poll() for one in others):
        if process.poll() is not None:
            return
        on_poll()
        time.sleep(_POLL_S)
    raise StageError("in place", "a rank failed")


def _be_rank(task: StandaloneTask, task_file: Path, store: Membership, first: int) -> None:
    """Be the rank in each attempt that another one's end has broken, and in the one after it."""
    config, url = task.config, RunFolder(task.storage, task.run).url
    numbers = connect(store)
    for which in itertools.count(first):
        attempt = int(numbers.get(str(which)))
        group = _group(task.run, attempt)
        own = Membership(store.host, store.port, group, store.rank, store.world_size)
        try:
            train(url, config, attempt, own, partial(_trainer, task, task_file))
            return
        except AttemptLostError:
            """The next attempt goes on from what this process has kept."""


def _trainer(
    task: StandaloneTask,
    task_file: Path,
    _folder: RunFolder,
    _config: TrainConfig,
    attempt: int,
    group: Group,
    **more: Any,
) -> StandaloneTrainer:
    return StandaloneTrainer(task, task_file, attempt, group, **more)


def main() -> None:
    """Entry point of a rank."""
    task_file, (host, port, rank, first) = Path(sys.argv[1]), sys.argv[2:]
    task = StandaloneTask.model_validate_json(task_file.read_text())
    store = Membership(host, int(port), _ATTEMPTS, int(rank), task.config.num_workers)
    run_as_rank(task_file, partial(_be_rank, task, task_file, store, int(first)))
    os._exit(0)


if __name__ == "__main__":
    main()
