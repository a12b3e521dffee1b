"""What workers and drivers would import for nothing, on few cores and several at once.

On import torchmetrics loads all of scipy.signal, 1.2 s, to put a name back into it that an audio
metric once needed. While torchmetrics is imported, an empty module that has the name stands in;
what needs the real scipy.signal afterwards loads it.

The first optimizer of a process loads torch's compiler (`torch._dynamo` and sympy), 1.2 s or more,
to mark functions that must not be compiled. `defer_dynamo` has it loaded by what compiles.

`benchmarks/README.md` has the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

_SIGNAL, _DYNAMO = "scipy.signal", "torch._dynamo"

if _SIGNAL not in sys.modules and "torchmetrics" not in sys.modules:
    _stand_in = ModuleType(_SIGNAL)
    _stand_in.hamming = None  # type: ignore[attr-defined]  # the name it looks for
    sys.modules[_SIGNAL] = _stand_in
    try:
        import_module("torchmetrics")
    finally:
        del sys.modules[_SIGNAL]
        if "scipy" in sys.modules:
            vars(sys.modules["scipy"]).pop("signal", None)


class _Deferred(ModuleType):
    """A module that is loaded, into this very object, when anything else of it is asked for."""

    def __init__(self, name: str, **until_then: Callable[..., Any]) -> None:
        super().__init__(name)
        self.__spec__ = find_spec(name)
        vars(self).update(until_then)

    def __getattr__(self, name: str) -> Any:
        # Whoever looks through all modules, as `inspect` does for their files, needs none of it; an
        # import of a module below it does.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(f"module {self.__name__!r} has no {name!r} before it is loaded")
        spec = vars(self)["__spec__"]
        self.__class__ = ModuleType  # type: ignore[assignment]  # it becomes the module
        self.__file__, self.__loader__ = spec.origin, spec.loader
        self.__path__ = spec.submodule_search_locations
        spec.loader.exec_module(self)
        return getattr(self, name)


def defer_dynamo() -> None:
    """Let optimizers do without torch's compiler, until something compiles.

    Call it after the process group was made: torch clears the compiler's caches then, and loads it
    for that if it is in `sys.modules`. What an optimizer asks of the compiler, to break a graph and
    not to compile a function, does nothing where nothing is compiled: the bits are the same.
    """
    if _DYNAMO in sys.modules:
        return
    deferred = _Deferred(_DYNAMO, graph_break=_nothing, disable=_disable_later)
    sys.modules[_DYNAMO] = deferred
    vars(torch)["_dynamo"] = deferred


def _nothing(msg: str = "") -> None:
    pass


def _disable_later(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """`torch._dynamo.disable(function, …)`, asked for once the compiler is there."""
    disabled: Callable[..., Any] | None = None

    def call(*given: Any, **named: Any) -> Any:
        nonlocal disabled
        compiler = sys.modules[_DYNAMO]
        if disabled is None and compiler.disable is not _disable_later:
            disabled = compiler.disable(function, *args, **kwargs)
        return (disabled or function)(*given, **named)

    return call
