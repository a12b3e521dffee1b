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
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any

import psutil

from train_core.config import LOCAL
from train_core.engine.driver_stages import DriverStages
from train_core.engine.job_stages import JobStages
from train_core.errors import EvertrainError


def serve(commands: IO[str], replies: IO[str]) -> None:
    """Run commands until `close` or their end. `prepare` and starting Ray happen on this thread.

    A Ray that is started from a thread dies with it.
    """
    driver: DriverStages | JobStages = DriverStages()
    writing = threading.Lock()

    def reply(call: int, **content: Any) -> None:
        with writing:
            replies.write(json.dumps({"call": call, **content}) + "\n")
            replies.flush()

    def run(call: int, stage: str, arguments: dict[str, Any]) -> bool:
        try:
            reply(call, result=getattr(driver, stage)(**arguments))
        except Exception as error:  # noqa: BLE001 (the other process raises it)
            reply(call, error=describe(stage, error))
            return False
        return True

    ended = ThreadPoolExecutor(4, "stage")
    ray_error: dict[str, Any] | None = None
    for line in commands:
        command = json.loads(line)
        call, stage, arguments = command["call"], command["stage"], command["arguments"]
        if stage == "close":
            run(call, stage, arguments)
            break
        if stage == "prepare":
            if arguments["request"]["config"]["ray_address"] != LOCAL:
                driver = JobStages()
            if run(call, stage, arguments):
                try:
                    driver.start_ray()
                except Exception as error:  # noqa: BLE001 (told by the next stage)
                    ray_error = describe("prepare", error)
        elif ray_error:
            reply(call, error=ray_error)
        else:
            ended.submit(run, call, stage, arguments)
    _end()


def _end() -> None:
    """End at once, with all that was started.

    Ray is not shut down in order: a stage may be waiting for it in another thread, Ray ends such
    a process at any moment of the shutdown, and two of its agents then live on for a minute.
    """
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    if tempfile.tempdir:
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)
    os._exit(0)


def describe(stage: str, error: Exception) -> dict[str, Any]:
    """What another process needs to raise the error as what it is."""
    # Ray wraps what a task raised.
    cause = getattr(error, "cause", None)
    error = cause if isinstance(cause, Exception) else error
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, EvertrainError):
        reduced = error.__reduce__()
        assert not isinstance(reduced, str)
        facts = reduced[1]
        name = type(error).__name__
        return {"type": name, "facts": facts, "stage": stage, "message": str(error)}
    return {
        "type": "",
        "facts": [],
        "stage": stage,
        "message": f"{type(error).__name__}: {error}",
        "traceback": trace,
    }


def main() -> None:
    """Entry point: the number of the pipe for replies, and a folder for temporary files.

    Whoever began this process deletes the folder after it; without such a one it does so itself.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    # MLflow writes a model there before it sends it.
    tempfile.tempdir = sys.argv[2]
    replies = os.fdopen(int(sys.argv[1]), "w")
    serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
