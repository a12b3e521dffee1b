"""The code that a model in MLflow needs: paths that are copied, packages that are installed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import train_core
from train_core.own_code import is_installed, own_code_of, owners_of

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


@dataclass(frozen=True)
class Code:
    """What a model needs of this process, to be loaded by another one."""

    paths: list[str]
    """What is copied: this library, and modules and packages of the user's that are not installed.
    """
    requirements: list[str]
    """What is installed, at the versions of this process."""


def code_of(names: Iterable[str]) -> Code:
    """The code of what is named as `package.module:Name`, and of what its modules import.

    Only modules that are loaded count: those that were needed so far.
    """
    found = own_code_of(names, only_loaded=True)
    tops = {name.partition(".")[0] for name in found.modules} - {train_core.__name__}
    installed = {top for top in tops if is_installed(top)}
    unknown = (found.installed | installed) - set(REQUIREMENTS)
    requirements = (*REQUIREMENTS, *sorted(owners_of(unknown) - set(REQUIREMENTS)))
    return Code(
        paths=[str(Path(train_core.__file__).parent), *map(_path_of, sorted(tops - installed))],
        requirements=[
            # A local label ("+cpu") is known to no index.
            f"{name}=={metadata.version(name).partition('+')[0]}"
            for name in requirements
        ],
    )


def _path_of(top: str) -> str:
    module = sys.modules[top]
    return str(module.__path__[0] if hasattr(module, "__path__") else module.__file__)
