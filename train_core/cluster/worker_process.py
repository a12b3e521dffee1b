"""A worker: a Ray actor that runs functions named `module:name`, one after the other.

At SIGTERM Ray ends the process after the running call returns. A rank learns of the signal by
itself (`rank/distributed/stop_requests.py`). If the others can train on without it, the driver ends
it; else all save a checkpoint, and go on with another worker in this one's place.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import psutil
import ray
from ray._private.ray_constants import LOG_PREFIX_ACTOR_NAME

from train_core.cluster.rank_order import Location
from train_core.inside import mark_this_process, note_sigterm
from train_core.quick_imports import garbage_collection_paused

WORK, CONTROL = "work", "control"
"""The worker's two threads: one runs functions, the other answers while they run."""
_OF_THREADS = ("OMP_NUM_THREADS",)
_NICENESS = 10
"""Of 19, with which a process would hardly start beside two that train on two CPUs."""
Actor = Any
"""A handle on a `TrainWorker`: Ray's own annotation does not know its methods."""


class TrainWorker:
    """An actor with two threads, so that it answers calls while it trains."""

    def __init__(self, preload: Sequence[str], *, is_spare: bool = False) -> None:
        """Import the modules `preload`, which takes seconds, before they are needed.

        A spare does so in time that nobody else needs.
        """
        mark_this_process("worker")
        # Ray sets it by the CPUs that a worker has, unless the user did; without any, to 1.
        self._threads = {name: os.environ[name] for name in _OF_THREADS if name in os.environ}
        # Where Ray does not run it in the main thread, the signal does what it did before.
        with suppress(ValueError):
            note_sigterm()
        load = partial(_import, preload)
        _at_low_priority(load) if is_spare else load()
        self._ready_at = time.time()

    @ray.method(concurrency_group=WORK)
    def locate(self) -> Location:
        """Where Ray has placed this worker; it says so when it can run a function."""
        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU", [])
        in_order = sorted(map(str, gpus), key=lambda gpu: (len(gpu), gpu))
        return Location(context.get_node_id(), tuple(in_order), self._ready_at)

    @ray.method(concurrency_group=CONTROL)
    def threads(self) -> dict[str, str]:
        """What Ray has set of how many threads libraries have, by the environment's variables."""
        return self._threads

    @ray.method(concurrency_group=CONTROL)
    def memory_bytes(self) -> int:
        """The memory that this process takes."""
        return int(psutil.Process().memory_info().rss)

    @ray.method(concurrency_group=CONTROL)
    def answer(self) -> None:
        """Return, which shows that the process is neither suspended nor stuck."""

    @ray.method(concurrency_group=WORK)
    def set_up(self, name: str, environment: Mapping[str, str]) -> None:
        """Set environment variables, and give the log's lines of this process another name."""
        os.environ.update(environment)
        # Ray's log monitor reads this line from the log and does not print it.
        for log in (sys.stdout, sys.stderr):
            log.write(f"{LOG_PREFIX_ACTOR_NAME}{name}\n")
            log.flush()

    @ray.method(concurrency_group=WORK)
    def run(self, function: str, arguments: Sequence[Any]) -> Any:
        """Run the function `module:name`, always in the same thread; return its result.

        What a user's module sets as it is imported may hold for that thread only.
        """
        module, _, name = function.partition(":")
        return getattr(importlib.import_module(module), name)(*arguments)


def _at_low_priority(load: Callable[[], None]) -> None:
    """Call it in a thread of its own: nobody but root may raise a priority again."""

    def lower() -> None:
        # Linux has a priority for each thread. Elsewhere there is none to be lowered.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)

    with ThreadPoolExecutor(1, "spare", lower) as thread:
        thread.submit(load).result()


def _import(modules: Sequence[str]) -> None:
    with garbage_collection_paused():
        for module in modules:
            importlib.import_module(module)
    # Nothing of the user's is there yet: what was imported need not be looked through for garbage.
    gc.freeze()
