"""Code that runs inside a process that evertrain started, or as it imports a module, starts no run.

A script that calls `fit` at its top level, with its workload in the same file, is imported by the
driver that `fit` started: each driver would start another one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO

from train_core.errors import EvertrainError, WorkloadError, of_stage
from train_core.search_path import environment, find_in_current_directory

_VARIABLE = "EVERTRAIN_INSIDE"
_OURS = {"train_core", "evertrain_flows", "evertrain_tasks"}
_GUARD = 'if __name__ == "__main__":'
_was_terminated = threading.Event()
_imported: ContextVar[str] = ContextVar("imported", default="")


def environment_of(process: str, **variables: str) -> dict[str, str]:
    """The environment of a Python process that evertrain starts, such as `driver`."""
    return environment(**{_VARIABLE: process}, **variables)


def note_sigterm(*, ends_process: bool = True) -> None:
    """Note from here on if this process gets SIGTERM, beside what the signal does already.

    Unless it `ends_process`, the signal does nothing else; it ends a process that is forked from
    this one. Raises ValueError if this is not the main thread.
    """
    before, noting = signal.getsignal(signal.SIGTERM), os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        _was_terminated.set()
        if ends_process and callable(before):
            before(number, frame)
        elif os.getpid() != noting:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    signal.signal(signal.SIGTERM, handle)


def was_terminated() -> bool:
    """Whether this process got SIGTERM since `note_sigterm`."""
    return _was_terminated.is_set()


def mark_this_process(process: str) -> None:
    """Mark this process, and all that it starts, as one that evertrain started."""
    os.environ[_VARIABLE] = process


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Mark what this thread does as the import of a user's module."""
    token = _imported.set(module)
    try:
        yield
    finally:
        _imported.reset(token)


@contextmanager
def users_code_in_command(command: str, module: str) -> Iterator[None]:
    """Run code of the user's `module` in the process of a command, which prints results to stdout.

    What the code prints to stdout is not shown, nor what the programs print that it starts. It may
    start no run. An error of another library becomes a StageError of `command`.
    """
    find_in_current_directory()
    try:
        with _stdout_discarded(), importing(module):
            yield
    except EvertrainError:
        raise
    # A module may end the interpreter as it is imported.
    except (Exception, SystemExit) as error:
        raise of_stage(command, error) from error


@contextmanager
def _stdout_discarded() -> Iterator[None]:
    _flush_stdout()
    stdout = os.dup(1)
    try:
        with redirect_stdout(_nowhere()):
            # Of libraries written in C, and of programs.
            os.dup2(_nowhere().fileno(), 1)
            yield
    finally:
        # What they hold back was printed in the block.
        _flush_stdout()
        os.dup2(stdout, 1)
        os.close(stdout)


@cache
def _nowhere() -> IO[str]:
    """Never closed: a handler of logs that a module has made may keep it."""
    return Path(os.devnull).open("w")


def _flush_stdout() -> None:
    for stream in {sys.stdout, sys.__stdout__}:
        if stream is not None:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def refuse_inside() -> None:
    """Raise WorkloadError if the caller runs inside evertrain, where nobody may start a run."""
    module, process = _imported.get(), os.environ.get(_VARIABLE, "")
    if not module and not process:
        return
    where = f"evertrain's {process}" if process else "evertrain"
    is_import, line = _place()
    if is_import:
        raise WorkloadError(
            f"{line} starts a run as it is imported, here by {where}: put what starts a run under "
            f"`{_GUARD}`"
        )
    raise WorkloadError(f"{line} starts a run inside {where}: start it from a program of its own")


def _place() -> tuple[bool, str]:
    """Whether a module's top level leads to the call, and the line of the user's that does."""
    nearest = ""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (inspect takes seconds)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        # Of a program that is started as `python -m`, the name is no module's.
        package = str(frame.f_globals.get("__package__") or name).partition(".")[0]
        top = name.partition(".")[0]
        if not {top, package} & _OURS and top not in sys.stdlib_module_names:
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            nearest = nearest or line
            if frame.f_code.co_name == "<module>" and _is_imported(frame):
                return True, line
        frame = frame.f_back
    return False, nearest or "code of yours"


def _is_imported(module: FrameType) -> bool:
    """Whether an import runs the module's top level, and not a program."""
    caller = module.f_back
    return caller is not None and "importlib._bootstrap" in caller.f_code.co_filename
