"""Starting real process groups of ranks, and what became of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


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
) -> dict[str, Any] | None:
    """Train with so many real ranks; None if the scheduled death ended it.

    `point` and `step` say where rank `rank` kills itself.
    """
    task = {"storage": storage, "run": run, "attempt": attempt, "config": config}
    port = _free_port()
    processes = []
    for number in range(workers):
        mine = task | ({"point": point, "step": step} if number == rank else {})
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if workers > 1:
            environment |= {
                "RANK": str(number),
                "WORLD_SIZE": str(workers),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.engine.rank", json.dumps(mine)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        if point:
            processes[rank].wait(timeout_s)
            assert processes[rank].returncode == -9, processes[rank].communicate()[1]
            return None
        outputs = [process.communicate(timeout=timeout_s) for process in processes]
        for process, (_, error) in zip(processes, outputs, strict=True):
            assert process.returncode == 0, error
        found: dict[str, Any] = json.loads(outputs[0][0].splitlines()[-1])
        return found
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
