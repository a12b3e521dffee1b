"""evertrain's library: exact, cheap, verified training of PyTorch models on Ray.

Its public names are those of `api.py`. Imports nothing heavy by itself: `from train_core import
fit` loads torch when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from train_core import api, search_path  # noqa: F401 (its import arranges the search path)
from train_core.torchvision_build import import_without_operators

if TYPE_CHECKING:
    from train_core.api import *  # noqa: F403 (each name is in its __all__)

__all__ = api.__all__
import_without_operators()


def __getattr__(name: str) -> Any:
    return getattr(api, name)
