"""Starting real process groups of ranks, and what became of them.

Ranks are forked from a server that has imported torch once; each is a process of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import socket
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.engine import rank as program

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["__main__", program.__name__])


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
    timeout_s: float = 90,
    main: Callable[..., None] = program.main,
) -> Any:
    """Train with so many real ranks; None if the scheduled death ended it.

    `point` and `step` say where rank `rank` kills itself; `main` is what each rank runs.
    """
    task = {"storage": storage, "run": run, "attempt": attempt, "config": config}
    port = _free_port()
    log = Path(storage, f"{run}-{attempt}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    outcome = Path(storage, f"{run}-{attempt}.json")
    processes = []
    for number in range(workers):
        mine = task | ({"point": point, "step": step} if number == rank else {})
        environment = {}
        if workers > 1:
            environment = {
                "RANK": str(number),
                "WORLD_SIZE": str(workers),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        process = _PROCESSES.Process(target=main, args=(mine, environment, log, outcome))
        process.start()
        processes.append(process)
    try:
        if point:
            processes[rank].join(timeout_s)
            assert processes[rank].exitcode == -signal.SIGKILL, log.read_text()
            return None
        for process in processes:
            process.join(timeout_s)
            assert process.exitcode == 0, log.read_text()
        return json.loads(outcome.read_text())
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
