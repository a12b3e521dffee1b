"""torchmetrics, without the 1.2 s that its import spends on a library nobody asked for.

On import torchmetrics loads all of scipy.signal, to put a name back into it that an audio metric
once needed. Every driver and worker process would pay for that, several at once on few cores.
While torchmetrics is imported, an empty module that has the name stands in; what needs the real
scipy.signal afterwards loads it. `benchmarks/README.md` has the figures.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

_SIGNAL = "scipy.signal"

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
