"""The driver process: checks a request, starts Ray, runs the stages that it is told to.

Commands come as JSON lines on stdin, replies go as JSON lines to a pipe, and stdout carries the
log of the driver and of all workers. When stdin ends, the program that wanted the work is gone:
the driver ends too, and its Ray with it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import IO, Any, NoReturn

import psutil

from train_core.config import LOCAL, TrainConfig
from train_core.described_errors import describe
from train_core.engine.cluster.pool_settings import POOL_SETTINGS
from train_core.engine.cluster.runtime import dead_ray, load_ray
from train_core.engine.driver.remote_stages import JobStages
from train_core.engine.driver.stages import DriverStages
from train_core.log_lines import set_up_logging

_LOOK_EVERY_S = 1.0
_is_ending = threading.Event()
_log = logging.getLogger("train_core.driver")


class MainThread:
    """Runs functions on the main thread, one after the other."""

    def __init__(self) -> None:
        self._wanted: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()

    def submit(self, function: Callable[[], None]) -> Future[None]:
        """Run the function there; its end."""
        ended: Future[None] = Future()
        self._wanted.put((function, ended))
        return ended

    def run(self) -> NoReturn:
        """Be the main thread, until the process ends."""
        while True:
            function, ended = self._wanted.get()
            try:
                function()
            except Exception as error:  # noqa: BLE001 (whoever waits for the end raises it)
                ended.set_exception(error)
            else:
                ended.set_result(None)


class Server:
    """Runs the commands that come, and replies to each.

    Ray is started on the main thread, as a Ray that is started from a thread dies with it.
    """

    def __init__(self, replies: IO[str], main_thread: MainThread) -> None:
        self._driver: DriverStages | JobStages = DriverStages()
        self._replies = replies
        self._writing = threading.Lock()
        self._main_thread = main_thread
        self._starting = threading.Lock()
        self._ray: Future[None] | None = None
        """The end of the newest try to start Ray."""

    def serve(self, commands: IO[str]) -> None:
        """Run commands until `close` or their end; each stage in a thread of its own."""
        stages = ThreadPoolExecutor(4, "stage")
        for line in commands:
            command = json.loads(line)
            call, stage, arguments = command["call"], command["stage"], command["arguments"]
            if stage == "close":
                # It needs no Ray any more, and has something to say to MLflow and the storage.
                _is_ending.set()
                self._run(call, stage, arguments)
                break
            if stage == "prepare":
                self._prepare(call, arguments)
            else:
                stages.submit(self._compute, call, stage, arguments)

    def _prepare(self, call: int, arguments: dict[str, Any]) -> None:
        config = TrainConfig.model_validate(arguments["request"]["config"])
        self._start_ray = partial(self._started_ray, config)
        if config.ray_address == LOCAL:
            # Ray's processes start while this one imports torch and checks the request: Ray first.
            load_ray(config, POOL_SETTINGS)
            self._ray = self._main_thread.submit(self._start_ray)
        else:
            self._driver = JobStages()
        self._run(call, "prepare", arguments)

    def _started_ray(self, config: TrainConfig) -> None:
        self._driver.start_ray(config)
        if isinstance(self._driver, DriverStages):
            threading.Thread(target=_end_with_ray, daemon=True).start()

    def _compute(self, call: int, stage: str, arguments: dict[str, Any]) -> None:
        """Run a stage that needs Ray; one that did not start may do so by now."""
        try:
            with self._starting:
                if self._ray is None or (self._ray.done() and self._ray.exception()):
                    self._ray = self._main_thread.submit(self._start_ray)
                ray = self._ray
            ray.result()
        except Exception as error:  # noqa: BLE001 (the other process raises it)
            self._reply(call, error=describe("prepare", error))
        else:
            self._run(call, stage, arguments)

    def _run(self, call: int, stage: str, arguments: dict[str, Any]) -> None:
        """Run the stage, and reply what it gives."""
        try:
            result = getattr(self._driver, stage)(**arguments)
            self._reply(call, result=result)
        except Exception as error:  # noqa: BLE001 (the other process raises it)
            self._reply(call, error=describe(stage, error))

    def _reply(self, call: int, **content: Any) -> None:
        with self._writing:
            self._replies.write(json.dumps({"call": call, **content}) + "\n")
            self._replies.flush()


def _end_with_ray() -> None:
    """End when Ray has died: this process cannot have another one, and a next one can.

    A stage would wait for a head that is gone, or fail, and fail again when it is tried again.
    """
    while not _is_ending.wait(_LOOK_EVERY_S):
        # Who ends in order kills Ray, too, but says so before.
        if (died := dead_ray()) and not _is_ending.is_set():
            _log.warning("Ray's %s died: the driver ends", died)
            _end(1)


def _end(code: int) -> None:
    """End at once, with all that was started.

    Ray is not shut down in order: a stage may be waiting for it in another thread, Ray ends such
    a process at any moment of the shutdown, and two of its agents then live on for a minute.
    """
    _is_ending.set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    if tempfile.tempdir:
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)
    os._exit(code)


def main() -> None:
    """Entry point: the number of the pipe for replies, and a folder for temporary files.

    Whoever began this process deletes the folder after it; without such a one it does so itself.
    """
    set_up_logging(sys.stdout)
    # MLflow writes a model there before it sends it.
    tempfile.tempdir = sys.argv[2]
    replies = os.fdopen(int(sys.argv[1]), "w")
    main_thread = MainThread()
    server = Server(replies, main_thread)
    threading.Thread(target=_serve, args=(server,), daemon=True).start()
    main_thread.run()


def _serve(server: Server) -> None:
    """Serve until the commands end, and end the process."""
    code = 1
    try:
        server.serve(sys.stdin)
        code = 0
    except BrokenPipeError:
        _log.debug("the replies are not read: the calling program was killed")
    except BaseException:  # noqa: BLE001 (a workload's own sys.exit(), too)
        _log.exception("the driver ends")
    finally:
        _end(code)


if __name__ == "__main__":
    main()
