"""A function that is called at intervals beside a long stage."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Self


class Ticker:
    """Calls `tick` every `every_s` seconds in a thread of its own, while the block runs.

    `tick` is called a last time at the end of the block. A block that is interrupted ends without
    waiting for a tick. The thread has a copy of its maker's context, with Prefect's run context.
    """

    def __init__(self, tick: Callable[[], None], every_s: float) -> None:
        self._tick = tick
        self._every_s = every_s
        self._done = threading.Event()
        self._is_interrupted = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A tick may wait for a server or a storage that is away; the training must get its request
        # to save before that.
        self._is_interrupted = kind is not None and not issubclass(kind, Exception)
        self._done.set()
        if not self._is_interrupted:
            self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._every_s):
            self._tick()
        if not self._is_interrupted:
            self._tick()
