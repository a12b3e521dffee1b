"""The code that a model in MLflow needs: paths that are copied, packages that are installed."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import train_core

REQUIREMENTS = (
    "blake3",
    "mlflow",
    "numpy",
    "pandas",
    "fsspec",
    "pydantic",
    "safetensors",
    "torch",
    "torchmetrics",
)


def code_paths(workload: object) -> list[str]:
    """The paths to copy: this library, and the user's module or package if it is not installed."""
    paths = [str(Path(train_core.__file__).parent)]
    top = _top_module(workload)
    if top != "train_core" and not _is_installed(top):
        module = sys.modules[top]
        paths.append(str(module.__path__[0] if hasattr(module, "__path__") else module.__file__))
    return paths


def requirements(workload: object) -> list[str]:
    """The packages to install, at the versions of this process."""
    top = _top_module(workload)
    owners = metadata.packages_distributions().get(top, []) if _is_installed(top) else []
    return [
        # A local label ("+cpu") is known to no index.
        f"{name}=={metadata.version(name).partition('+')[0]}"
        for name in (*REQUIREMENTS, *owners)
    ]


def _top_module(workload: object) -> str:
    return type(workload).__module__.partition(".")[0]


def _is_installed(top: str) -> bool:
    file = getattr(sys.modules[top], "__file__", None) or ""
    return bool({"site-packages", "dist-packages"} & set(Path(file).parts))
