"""Groups of real processes that do what they are told, all at once: one command, one answer each.

A command is a line of JSON on a connection within this machine. So the processes that Ray starts
are driven like our own, contenders live side by side, and each works only while it has its turn.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.services import free_port

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["train_core.rank.loop", "benchmarks.checkpoint.training"])

Main = Callable[[dict[str, Any]], Callable[..., Any]]
"""What makes of a rank's task the function that carries out its commands."""


class Ranks:
    """The processes of one group, in the order of ranks."""

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self.log = folder / f"{name}.log"
        self.count = count
        self.processes: list[Any] = []
        self._files: list[Any] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=count)
        self._listening.settimeout(1)
        self.port: int = self._listening.getsockname()[1]
        """The group listens on it."""

    def start(self, main: Main, task: dict[str, Any], **environment: str) -> Self:
        """Start the processes as ranks of a gloo group; each makes its function of the task."""
        port = str(free_port())
        for rank in range(self.count):
            place = {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            arguments = (self.port, rank, main, task, self.log, place | environment)
            process = _PROCESSES.Process(target=_run, args=arguments, daemon=True)
            process.start()
            self.processes.append(process)
        return self.accept()

    def accept(self) -> Self:
        """Wait until all ranks are there."""
        found: dict[int, Any] = {}
        deadline = time.monotonic() + 120
        while len(found) < self.count:
            ended = any(process.exitcode is not None for process in self.processes)
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"not all ranks came:\n{self._logged()}")
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listening.accept()
                connection.settimeout(300)
                file = connection.makefile("rw")
                connection.close()
                found[json.loads(file.readline())] = file
        self._files = [found[rank] for rank in range(self.count)]
        return self

    def tell(self, command: str, **arguments: Any) -> None:
        """Give every rank a command."""
        for file in self._files:
            file.write(json.dumps([command, arguments]) + "\n")
            file.flush()

    def answers(self) -> list[Any]:
        """Every rank's answer to the last command."""
        found = []
        for file in self._files:
            line = file.readline()
            if not line:
                raise RuntimeError(f"a rank ended:\n{self._logged()}")
            answer = json.loads(line)
            if "failed" in answer:
                raise RuntimeError(answer["failed"])
            found.append(answer["done"])
        return found

    def ask(self, command: str, **arguments: Any) -> list[Any]:
        """Give every rank a command and wait for the answers."""
        self.tell(command, **arguments)
        return self.answers()

    def kill(self) -> float:
        """Kill all processes at once; the moment before, of `time.perf_counter`."""
        moment = time.perf_counter()
        for process in self.processes:
            os.kill(process.pid, signal.SIGKILL)
        return moment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close()
        self._listening.close()
        for process in self.processes:
            process.join(0 if error else 20)
            process.kill()
            process.join()
            process.close()

    def _logged(self) -> str:
        return self.log.read_text()[-4000:] if self.log.exists() else ""


def serve(port: int, rank: int, do: Callable[..., Any]) -> None:
    """Carry out commands until there are no more."""
    connection = socket.create_connection(("127.0.0.1", port))
    with connection, connection.makefile("rw") as file:
        file.write(f"{rank}\n")
        file.flush()
        for line in file:
            command, arguments = json.loads(line)
            try:
                answer = {"done": do(command, **arguments)}
            except Exception:  # noqa: BLE001 (the conductor raises whatever it is)
                answer = {"failed": traceback.format_exc()}
            file.write(json.dumps(answer) + "\n")
            file.flush()


def _run(
    port: int,
    rank: int,
    main: Main,
    task: dict[str, Any],
    log: Path,
    environment: dict[str, str],
) -> None:
    with log.open("ab") as shown:
        os.dup2(shown.fileno(), 1)
        os.dup2(shown.fileno(), 2)
    os.environ.update(environment)
    serve(port, rank, main(task))
