"""A worker: a Ray actor that runs functions named `module:name`, one after the other.

At SIGTERM Ray ends the process after the running call returns. A training learns of the signal as
of a request to move (`rank/distributed/stop_requests.py`): it saves, and goes on with another
worker in this one's place.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import ray
from ray._private.ray_constants import LOG_PREFIX_ACTOR_NAME

from train_core.cluster.rank_order import Location
from train_core.inside import mark_this_process, note_sigterm
from train_core.quick_imports import garbage_collection_paused

WORK, CONTROL = "work", "control"
"""The worker's two threads: one runs functions, the other answers while they run."""
T = TypeVar("T")
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
        # Where Ray does not run it in the main thread, the signal does what it did before.
        with suppress(ValueError):
            note_sigterm()
        load = partial(_import, preload)
        at_low_priority(load) if is_spare else load()
        self._ready_at = time.time()

    @ray.method(concurrency_group=CONTROL)
    def locate(self) -> Location:
        """Where Ray has placed this worker."""
        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU", [])
        in_order = sorted(map(str, gpus), key=lambda gpu: (len(gpu), gpu))
        return Location(context.get_node_id(), tuple(in_order), self._ready_at)

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
    def prepare(self, function: str, arguments: Sequence[Any]) -> None:
        """Run a function as `run`, in time that nobody else needs."""
        at_low_priority(partial(_call, function, arguments))

    @ray.method(concurrency_group=WORK)
    def run(self, function: str, arguments: Sequence[Any]) -> Any:
        """Run the function `module:name`, always in the same thread; return its result."""
        return _call(function, arguments)


def at_low_priority(call: Callable[[], T]) -> T:
    """What the call gives. It runs in a thread of its own: no priority can be raised again."""

    def lower() -> None:
        # Linux has a priority for each thread. Elsewhere there is none to be lowered.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)

    with ThreadPoolExecutor(1, "spare", lower) as thread:
        return thread.submit(call).result()


def _import(modules: Sequence[str]) -> None:
    with garbage_collection_paused():
        for module in modules:
            importlib.import_module(module)


def _call(function: str, arguments: Sequence[Any]) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)
