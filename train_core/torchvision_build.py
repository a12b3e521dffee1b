"""torchvision whose build is for another torch, as PyPI's wheel, which is CUDA's, on a CPU.

Its operators cannot be loaded then, and its import fails; torchmetrics imports it, so every run
would end in that. All else of it is plain Python: the import goes on without the operators,
and who calls one, as `torchvision.ops.nms`, gets torchvision's own error.

This file imports next to nothing, as `train_core` imports it before the user's folders are put last
(`search_path.py`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_NAME = "torchvision"
_FAILURE = "operator torchvision::nms does not exist"
_TAKEN_FOR_GRANTED = ("nms", "qnms")
"""The operators that it describes to torch also where it has none."""
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _Finder:
    """Finds torchvision as the others do, and has it loaded by `_Loader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(fullname, path, target)
            if found is not None:
                if found.loader is not None:
                    found.loader = cast("Loader", _Loader(found.loader))
                return found
        return None


class _Loader:
    """Loads torchvision, without its operators if it must."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Whoever looks at the module finds the loader that it would have without this one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        try:
            self._loader.exec_module(module)
        except RuntimeError as error:
            if _FAILURE not in str(error):
                raise
            import logging

            import torch

            logging.getLogger(__name__).info(
                "torchvision was built for another torch than %s: it is used without its operators",
                torch.__version__,
            )
            for operator in _TAKEN_FOR_GRANTED:
                torch.library.define(f"torchvision::{operator}", _SCHEMA)
            self._loader.exec_module(module)


def import_without_operators() -> None:
    """Have this process import torchvision without its operators where these cannot be loaded."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
