"""Imports that every driver and worker waits for, in less time.

Python's garbage collector runs again and again while thousands of modules are made, and finds
nothing: two fifths of the time that importing torch's compiler takes, which torch does with the
first optimizer of a process. `benchmarks/README.md` has the figures.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector, as while the block imports many modules."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # A block within another one, or in another thread meanwhile, leaves it to that one.
        if was_enabled:
            gc.enable()


def import_for_optimizers() -> None:
    """Import what torch imports when the first optimizer of a process is made."""
    with garbage_collection_paused():
        import_module("torch._dynamo")
