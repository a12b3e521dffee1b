"""What evertrain uses of torchmetrics, imported in less time.

Only workloads import torchmetrics themselves: `workload` has imported this module before them.
torchmetrics loads all of scipy.signal, to put a name back into it that an audio metric once needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from train_core.quick_imports import garbage_collection_paused

_SIGNAL = "scipy.signal"


def _import_torchmetrics() -> None:
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


_import_torchmetrics()

# After that.
from torchmetrics import MeanMetric, Metric  # noqa: E402
from torchmetrics.classification import MulticlassConfusionMatrix  # noqa: E402
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_sum  # noqa: E402

__all__ = ["MeanMetric", "Metric", "MulticlassConfusionMatrix", "dim_zero_cat", "dim_zero_sum"]
