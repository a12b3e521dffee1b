"""The driver: a process of its own that runs the stages of one run.

Ray, torch and MLflow live there and not in the flow's process: a Ray started from a thread
that ends takes its program with it, and Prefect runs tasks in threads. The two talk in JSON
lines; the driver ends when the program that started it does. With a `ray_address`, Ray, torch and
MLflow live in a job of the cluster, which outlives the driver, and the driver only forwards calls.
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

from train_core.described_errors import rebuild
from train_core.entry_points import DRIVER
from train_core.errors import EvertrainError, StageError, StoppedError
from train_core.inside import environment_of, refuse_inside
from train_core.policy.end_status import EndStatus
from train_core.requests import Prepared, Request
from train_core.stages import ArgumentsT, ResultT, Stage


class Driver:
    """A handle on the driver process, from `start`; use it as a context manager.

    `prepared` waits for the outcome of the checks, and `ask` for a stage; both may be called from
    any thread. Errors of the driver are raised here with their own types: a ConfigError (never
    retried), a RunBusyError, or a StageError with the traceback of the first rank that failed.
    """

    def __init__(
        self,
        request: Request,
        process: subprocess.Popen[str],
        replies: IO[str],
        temporary: str,
        on_log: Callable[[str], None] | None,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.request = request
        self.on_log = on_log
        self._process = process
        self._commands: IO[str] = process.stdin
        self._temporary = temporary
        self._calls: dict[str, Future[Any]] = {}
        self._replies_ended = False
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._read_replies, args=(replies,), daemon=True),
            threading.Thread(target=self._read_log, args=(process.stdout,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._preparing = self._call("prepare", request=request.model_dump(mode="json"))

    @classmethod
    def start(cls, request: Request, on_log: Callable[[str], None] | None = None) -> Self:
        """Start the process, which checks the request and starts Ray at once.

        `on_log` is called with each line that the driver or a worker logs. Raises WorkloadError
        inside a process of evertrain's, or as a workload is imported.
        """
        refuse_inside()
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
        return cls(request, process, os.fdopen(reading, "r"), temporary, on_log)

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs; a dead driver answers nothing any more."""
        return self._process.poll() is None

    def prepared(self) -> Prepared:
        """The outcome of the checks. Raises ConfigError or RunBusyError."""
        return Prepared.model_validate(self._preparing.result())

    def ask(self, stage: Stage[ArgumentsT, ResultT], arguments: ArgumentsT) -> ResultT:
        """The result of a stage, once it is carried out."""
        return stage.result_of(self._call(stage.name, **arguments.model_dump(mode="json")).result())

    def close(self, status: EndStatus = EndStatus.FINISHED, timeout_s: float = 60) -> None:
        """End the driver, with the run's status for MLflow.

        A training that still runs gets its `grace_s` beside the timeout, and saves.
        """
        timeout_s += self.request.config.grace_s
        if self._process.poll() is None:
            closing = self._call("close", status=status)
            try:
                with suppress(TimeoutError, EvertrainError):
                    closing.result(timeout_s)
            except BaseException:
                # An interrupt of the wait, as by a second Ctrl-C, asks for the end at once.
                self._process.kill()
                self._process.wait()
                self._clear_away()
                raise
        with suppress(OSError):  # flushes commands that a dead process has not read
            self._commands.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._clear_away()
        for thread in self._threads:
            thread.join()

    def detach(self) -> None:
        """End the driver process at once; a job on a cluster goes on without it."""
        self._process.kill()
        self._process.wait()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(end_status(kind))

    def _clear_away(self) -> None:
        """End the processes and delete the temporary files that a killed driver has left.

        Ray's agents would live on for a minute by themselves.
        """
        # All of them are in the session that the driver began. Its id is reused only when none of
        # them lives: a process that has it now, after the driver's end, is an unrelated one.
        is_another = psutil.pid_exists(self._process.pid)
        for pid in [] if is_another else psutil.pids():
            with suppress(OSError):
                if os.getsid(pid) == self._process.pid:
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _call(self, stage: str, **arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            name = str(len(self._calls))
            self._calls[name] = future
            if self._replies_ended:
                # The pipe may still be open, in a process that the dead one has left.
                future.set_exception(StageError(stage, self._ended()))
                return future
            line = json.dumps({"call": name, "stage": stage, "arguments": arguments})
            try:
                self._commands.write(line + "\n")
                self._commands.flush()
            except (OSError, ValueError):
                future.set_exception(StageError(stage, self._ended()))
        return future

    def _read_replies(self, replies: IO[str]) -> None:
        with replies:
            for line in replies:
                if not line.endswith("\n"):
                    break  # killed in the middle of a reply
                reply = json.loads(line)
                future = self._calls[reply["call"]]
                if "error" in reply:
                    future.set_exception(rebuild(reply["error"]))
                else:
                    future.set_result(reply["result"])
        with self._lock:
            self._replies_ended = True
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(StageError("driver", self._ended()))

    def _read_log(self, output: IO[str]) -> None:
        with output:
            for line in output:
                if self.on_log:
                    self.on_log(line.rstrip("\n"))

    def _ended(self) -> str:
        try:
            code: int | None = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        return f"the driver process ended unexpectedly (exit code {code})"


def end_status(kind: type[BaseException] | None) -> EndStatus:
    """MLflow's status for a run that ended with an exception of this class, or with none."""
    if kind is None:
        return EndStatus.FINISHED
    was_stopped = issubclass(kind, StoppedError) or not issubclass(kind, Exception)
    return EndStatus.KILLED if was_stopped else EndStatus.FAILED
