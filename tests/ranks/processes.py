"""Starting real process groups of ranks, and what became of them.

Ranks are forked from a server that has imported torch once; each is a process of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from tests.ranks import rank as program

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["__main__", program.__name__, "tests.ranks.frozen"])


def start_server() -> None:
    """Start the server that ranks are forked from; it ends with this process."""
    forkserver.ensure_running()


def train(
    storage: str,
    run: str,
    *,
    attempt: int,
    workers: int,
    config: dict[str, Any],
    point: str = "",
    step: int = -1,
    rank: int = 0,
    after: int = 0,
    timeout_s: float = 90,
    main: Callable[..., None] = program.main,
    home: str = "",
) -> Any:
    """Train with so many real ranks; None if the scheduled death ended it.

    `point` and `step` say where rank `rank` kills itself, as soon as step `after` is committed;
    `main` is what each rank runs; the ranks' own files lie in `home`, or in a local storage.
    """
    task = {
        "storage": storage,
        "home": home or storage,
        "run": run,
        "attempt": attempt,
        "config": config,
    }
    fault = {"point": point, "step": step, "rank": rank, "after": after}
    with ranks(task, workers, fault, main=main) as processes:
        log, outcome = files(task)
        if point:
            processes[rank].join(timeout_s)
            assert processes[rank].exitcode == -signal.SIGKILL, log.read_text()
            return None
        for process in processes:
            process.join(timeout_s)
            assert process.exitcode == 0, log.read_text()
        return json.loads(outcome.read_text())


def files(task: dict[str, Any]) -> tuple[Path, Path]:
    """What the ranks print, and what rank 0 says at the end."""
    stem = Path(task["home"], f"{task['run']}-{task['attempt']}")
    return stem.with_suffix(".log"), stem.with_suffix(".json")


@contextmanager
def ranks(
    task: dict[str, Any],
    workers: int,
    fault: dict[str, Any] | None = None,
    *,
    main: Callable[..., None] = program.main,
) -> Iterator[list[Any]]:
    """So many real ranks at `task`; those that still run are killed at the end.

    `fault` has the `rank` that it is for, and what that rank's task says more. The ranks' own
    files lie in the task's `home`.
    """
    fault = dict(fault or {"rank": -1})
    faulty = fault.pop("rank")
    # Here, as a driver has it: a port that was free a moment ago may be somebody's by now.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    log, outcome = files(task)
    log.parent.mkdir(parents=True, exist_ok=True)
    processes = []
    try:
        for number in range(workers):
            mine = task | (fault if number == faulty else {})
            # The server that they are forked from may not know of S3 yet.
            environment = {name: os.environ[name] for name in os.environ if name[:4] == "AWS_"}
            if workers > 1:
                environment |= {
                    "RANK": str(number),
                    "WORLD_SIZE": str(workers),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(store.port),
                    # No rank is to have the store.
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                }
            process = PROCESSES.Process(target=main, args=(mine, environment, log, outcome))
            process.start()
            processes.append(process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
