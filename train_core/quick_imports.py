"""Imports that every driver and worker waits for, in less time.

Two things are slow in them. Python's garbage collector runs again and again while thousands of
modules are made, and finds nothing: two fifths of the time that importing torch's compiler takes,
which torch does with the first optimizer of a process. And torchmetrics loads all of scipy.signal,
to put a name back into it that an audio metric once needed. `benchmarks/README.md` has the figures.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

_SIGNAL = "scipy.signal"


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


def import_torchmetrics() -> None:
    """Import torchmetrics without scipy.signal.

    An empty module that has the name stands in; what needs the real scipy.signal afterwards loads
    it.
    """
    if _SIGNAL in sys.modules or "torchmetrics" in sys.modules:
        return
    stand_in = ModuleType(_SIGNAL)
    stand_in.hamming = None  # type: ignore[attr-defined]  # the name it looks for
    sys.modules[_SIGNAL] = stand_in
    try:
        with garbage_collection_paused():
            import_module("torchmetrics")
    finally:
        del sys.modules[_SIGNAL]
        if "scipy" in sys.modules:
            vars(sys.modules["scipy"]).pop("signal", None)


def import_for_optimizers() -> None:
    """Import what torch imports when the first optimizer of a process is made."""
    with garbage_collection_paused():
        import_module("torch._dynamo")
