"""The driver as a process of its own: `python -m train_core.driver.process_entry FD FOLDER`.

Calls come as JSON lines on stdin, answers go as JSON lines to a pipe, and stdout carries the log of
the driver and of all workers. When stdin ends, the program that wanted the work is gone: the driver
ends too, and its Ray with it.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, NoReturn

import psutil

from train_core.cluster.lent import use_lent
from train_core.cluster.runtime import dead_ray
from train_core.driver.pipe_transport import PipeTransport
from train_core.driver.ray_session import LocalRaySession
from train_core.driver.run_stages import stages_of
from train_core.driver.server import Stages, StageServer
from train_core.proxies import ask_loopback_directly
from train_core.requests import Request
from train_core.text.log_lines import set_up_logging
from train_core.timing import TIMING, Timing

_log = logging.getLogger("train_core.driver")


class DriverProcess:
    """This process: Ray is started on its main thread, while another one serves."""

    def __init__(self, timing: Timing = TIMING) -> None:
        self._timing = timing
        self._wanted: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        self._is_ending = threading.Event()

    def serve(self, calls: IO[str], answers: IO[str]) -> None:
        """Serve in another thread, and be the main thread, until the process ends."""
        server = StageServer(PipeTransport(calls, answers), self._open_stages)
        threading.Thread(target=self._serve, args=(server,), daemon=True).start()
        self._run_main_thread()

    def _open_stages(self, request: Request) -> Stages:
        use_lent(request.lent)
        ray = LocalRaySession(request.config, self._start_ray, self._is_ending.set, self._timing)
        # Ray's processes start while this one imports torch and checks the request: Ray first.
        ray.begin()
        return stages_of(request, ray, timing=self._timing)

    def _start_ray(self, start: Callable[[], None]) -> Future[None]:
        """Call `start` on the main thread, and end this process once Ray has died."""
        ended: Future[None] = Future()

        def start_and_watch() -> None:
            start()
            threading.Thread(target=self._end_with_ray, daemon=True).start()

        self._wanted.put((start_and_watch, ended))
        return ended

    def _run_main_thread(self) -> NoReturn:
        while True:
            function, ended = self._wanted.get()
            try:
                function()
            except Exception as error:  # noqa: BLE001 (whoever waits for the end raises it)
                ended.set_exception(error)
            else:
                ended.set_result(None)

    def _end_with_ray(self) -> None:
        """End when Ray has died: this process cannot have another one, and a next one can.

        A stage would wait for a head that is gone, or fail, and fail again when it is tried again.
        """
        while not self._is_ending.wait(self._timing.ray_poll_interval_s):
            # An orderly end kills Ray, too, but says so before.
            if (died := dead_ray()) and not self._is_ending.is_set():
                _log.warning("Ray's %s died: the driver ends", died)
                self._end(1)

    def _serve(self, server: StageServer) -> None:
        """Serve until the calls end, and end the process."""
        code = 1
        try:
            server.serve()
            code = 0
        except BrokenPipeError:
            _log.debug("the answers are not read: the calling program was killed")
        except BaseException:  # noqa: BLE001 (whatever it is, nobody else will say it)
            _log.exception("the driver ends")
        finally:
            self._end(code)

    def _end(self, code: int) -> None:
        """End at once, with all that was started.

        Ray is not shut down in order: a stage may be waiting for it in another thread, Ray ends
        such a process at any moment of the shutdown, and two of its agents then live on for a
        minute.
        """
        self._is_ending.set()
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if tempfile.tempdir:
            shutil.rmtree(tempfile.tempdir, ignore_errors=True)
        os._exit(code)


def main() -> None:
    """Entry point: the number of the pipe for answers, and a folder for temporary files.

    This process deletes the folder as it ends. The program that started it does so as well, as this
    process may be killed.
    """
    set_up_logging(sys.stdout)
    ask_loopback_directly()
    # MLflow writes a model there before it sends it.
    tempfile.tempdir = sys.argv[2]
    DriverProcess().serve(sys.stdin, os.fdopen(int(sys.argv[1]), "w"))


if __name__ == "__main__":
    main()
