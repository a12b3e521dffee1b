"""The code that a model in MLflow needs: paths that are copied, packages that are installed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

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
    own, installed = _loaded(name.partition(":")[0].partition(".")[0] for name in names)
    unknown = installed - set(REQUIREMENTS)
    owners = _owners() if unknown else {}
    if not unknown <= owners.keys():
        # One may have been installed, or come onto the path, since the last look.
        _owners.cache_clear()
        owners = _owners()
    found = {owner for top in unknown for owner in owners.get(top, [])} - set(REQUIREMENTS)
    return Code(
        paths=[str(Path(train_core.__file__).parent), *map(_path_of, sorted(own))],
        requirements=[
            # A local label ("+cpu") is known to no index.
            f"{name}=={metadata.version(name).partition('+')[0]}"
            for name in (*REQUIREMENTS, *sorted(found))
        ],
    )


@cache
def _owners() -> Mapping[str, list[str]]:
    """The names of the distributions that have each module; looking takes half a second."""
    return metadata.packages_distributions()


def _loaded(tops: Iterable[str]) -> tuple[set[str], set[str]]:
    """The user's own modules, by their first names, that these and their imports are; the others.

    Modules of Python's library and of evertrain are in neither.
    """
    own: set[str] = set()
    installed: set[str] = set()
    waiting = list(tops)
    while waiting:
        top = waiting.pop()
        is_known = top in own or top in installed or top == train_core.__name__
        if is_known or top in sys.stdlib_module_names or top not in sys.modules:
            continue
        if _is_installed(sys.modules[top]):
            installed.add(top)
        else:
            own.add(top)
            waiting += _imports_of(top)
    return own, installed


def _imports_of(top: str) -> Iterator[str]:
    """The first names of what the loaded modules of a package, or the module, import."""
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] != top or not str(file).endswith(".py"):
            continue
        for node in ast.walk(ast.parse(Path(str(file)).read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def _path_of(top: str) -> str:
    module = sys.modules[top]
    return str(module.__path__[0] if hasattr(module, "__path__") else module.__file__)


def _is_installed(module: ModuleType) -> bool:
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    parts = {part for place in places if place for part in Path(place).parts}
    return bool({"site-packages", "dist-packages"} & parts)
