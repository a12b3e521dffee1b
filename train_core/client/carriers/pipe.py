"""The pipes to a driver process on this machine, and the process itself.

Calls and answers are lines: a call's name and its JSON, as `driver/pipe_transport.py` has
them on the other side. The process ends when the program that started it does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, Any, Self

import psutil

from train_core.entry_points import DRIVER
from train_core.errors import StageError
from train_core.inside import environment_of
from train_core.stages import ArgumentsT, ResultT, Stage
from train_core.storage.coordination.job_mailbox import Call


class Pipe:
    """Carries calls to a driver process, from `start` until it is ended or killed."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        answers: IO[str],
        temporary: str,
        on_log: Callable[[str], None] | None,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._on_log = on_log
        self._commands: IO[str] = process.stdin
        self.temporary = temporary
        """The folder of the process for temporary files."""
        self._calls: dict[str, tuple[Stage[Any, Any], Future[Any]]] = {}
        self._answers_ended = False
        self._lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self._read_answers, args=(answers,), daemon=True),
            threading.Thread(target=self._read_log, args=(process.stdout,), daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    @classmethod
    def start(cls, on_log: Callable[[str], None] | None) -> Self:
        """Start the process. `on_log` is called with each line that it or a worker logs."""
        reading, writing = os.pipe()
        temporary = tempfile.mkdtemp(prefix="evertrain-")
        process = subprocess.Popen(
            [sys.executable, "-m", DRIVER, str(writing), temporary],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            env=environment_of("driver"),
            start_new_session=True,
            text=True,
            errors="replace",
        )
        os.close(writing)
        return cls(process, os.fdopen(reading, "r"), temporary, on_log)

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def call(self, stage: Stage[ArgumentsT, ResultT], arguments: ArgumentsT) -> Future[ResultT]:
        """The result of a stage. It raises what the stage raises, and StageError if it dies."""
        future: Future[ResultT] = Future()
        call = Call(stage=stage.name, arguments=arguments.model_dump(mode="json"))
        with self._lock:
            name = str(len(self._calls))
            self._calls[name] = stage, future
            if self._answers_ended:
                # The pipe may still be open, in a process that the dead one has left.
                future.set_exception(StageError(stage.name, self._ended()))
                return future
            try:
                # As ASCII: the pipe has the encoding of the locale.
                self._commands.write(f"{name} {json.dumps(call.model_dump())}\n")
                self._commands.flush()
            except (OSError, ValueError):
                future.set_exception(StageError(stage.name, self._ended()))
        return future

    def end(self, timeout_s: float) -> None:
        """Wait for the end of the process, which was asked to close, and kill it after that."""
        with suppress(OSError):  # flushes commands that a dead process has not read
            self._commands.close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._clear_away()
        for thread in self.threads:
            thread.join()

    def kill(self) -> None:
        """Kill the process, and what it has started."""
        self.process.kill()
        self.process.wait()
        self._clear_away()

    def _clear_away(self) -> None:
        """End the processes and delete the temporary files that a killed driver has left.

        Ray's agents would live on for a minute by themselves.
        """
        # All of them are in the session that the driver began. Its id is reused only when none of
        # them lives: a process that has it now, after the driver's end, is an unrelated one.
        is_another = psutil.pid_exists(self.process.pid)
        for pid in [] if is_another else psutil.pids():
            with suppress(OSError):
                if os.getsid(pid) == self.process.pid:
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _read_answers(self, answers: IO[str]) -> None:
        with answers:
            for line in answers:
                if not line.endswith("\n"):
                    break  # killed in the middle of an answer
                name, _, document = line.partition(" ")
                stage, future = self._calls[name]
                try:
                    future.set_result(stage.answer.model_validate_json(document).unwrapped())
                except Exception as error:  # noqa: BLE001 (who waits for the result raises it)
                    future.set_exception(error)
        with self._lock:
            self._answers_ended = True
            for _, future in self._calls.values():
                if not future.done():
                    future.set_exception(StageError("driver", self._ended()))

    def _read_log(self, output: IO[str]) -> None:
        with output:
            for line in output:
                if self._on_log:
                    self._on_log(line.rstrip("\n"))

    def _ended(self) -> str:
        try:
            code: int | None = self.process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        return f"the driver process ended unexpectedly (exit code {code})"
