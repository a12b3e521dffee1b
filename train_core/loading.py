"""Loads a workload or a training function by its name.

A workload gets its settings, checked, and the data that a run recorded.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from train_core.datasets.recorded import RecordedData
from train_core.datasets.sources import PinnedFiles
from train_core.errors import (
    WorkloadError,
    count_as_users,
    line_of_users_code,
    words_of,
)
from train_core.inside import importing
from train_core.text.shown_text import shown_value
from train_core.workload import Settings, Workload

_EXTRAS = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "lightgbm": "lightgbm",
    "lightning": "lightning",
    "pytorch_lightning": "pytorch-lightning",
    "transformers": "transformers",
    "xgboost": "xgboost",
}
"""The optional extras, by the modules that they bring."""
_HOW_TO_NAME = (
    "Name it as package.module:Name, and see that the module is in the current directory, or its "
    "folder in PYTHONPATH or EVERTRAIN_PATH."
)

_brought_in: dict[str, frozenset[str]] = {}


def load_workload(
    name: str, settings: Mapping[str, Any], recorded: RecordedData | None = None
) -> Workload[Any]:
    """The workload that `package.module:Name` names, with its settings checked.

    With `recorded` it reads the data of a run, and no other. Raises WorkloadError if it cannot be
    imported, is not a Workload, or refuses the settings.
    """
    workload = workload_class(name)(parse_settings(name, settings))
    if workload._files is not None:  # noqa: SLF001 (no concern of the workload's author)
        raise WorkloadError(
            f"{name} calls files() in __init__, where the run's record is not known yet: call it "
            "in dataset()"
        )
    if recorded is None:
        return workload
    workload._recorded = recorded  # noqa: SLF001
    workload._fitted = recorded.fitted  # noqa: SLF001
    if recorded.files is not None:
        workload._files = PinnedFiles(recorded.files).with_logins(workload.sources())  # noqa: SLF001
    return workload


def parse_settings(name: str, settings: Mapping[str, Any]) -> Settings:
    """The settings of the workload `name`, with their defaults. Raises WorkloadError."""
    try:
        return workload_class(name).Settings.model_validate(dict(settings))
    except ValidationError as error:
        details = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}, "
            f"got {shown_value(e['input'])}"
            for e in error.errors(include_url=False)
        )
        raise WorkloadError(
            f"settings of {name} are not valid: {details}. `evertrain workloads {name}` shows them."
        ) from error


def workload_class(name: str) -> type[Workload[Any]]:
    """The class that `package.module:Name` names. Raises WorkloadError."""

    def is_workload(value: object) -> bool:
        return isinstance(value, type) and issubclass(value, Workload) and value is not Workload

    found: type[Workload[Any]] = _object(name, "Workload", is_workload)
    return found


def load_function(name: str) -> Callable[..., Any]:
    """The function that `package.module:function` names. Raises WorkloadError."""
    found: Callable[..., Any] = _object(name, "function", callable)
    return found


def modules_behind(name: str) -> frozenset[str]:
    """The module that `package.module:Name` names, and all that came in with its import here."""
    module = name.partition(":")[0]
    return _brought_in.get(module, frozenset()) | {module}


def _object(name: str, kind: str, is_one: Callable[[object], bool]) -> Any:
    """What `package.module:Name` names, if it is of the kind. Raises WorkloadError."""
    module_name, _, object_name = name.partition(":")
    before = frozenset(sys.modules)
    try:
        with importing(module_name):
            module = importlib.import_module(module_name)
    except WorkloadError:
        raise
    # A script that is no module may end the interpreter.
    except (Exception, SystemExit) as error:
        line = line_of_users_code(traceback.format_exc())
        at = f" ({line})" if line else ""
        raise WorkloadError(
            f"{kind.lower()} {name!r} cannot be imported: {words_of(error)}{at}. "
            f"{_how_to_rename(module_name) or _HOW_TO_NAME}{_how_to_install(error)}"
        ) from error
    # A later import brings in nothing.
    _brought_in.setdefault(module_name, frozenset(sys.modules) - before)
    count_as_users(module)
    found = getattr(module, object_name, None)
    if not is_one(found):
        there = sorted(
            key
            for key, value in vars(module).items()
            if is_one(value) and getattr(value, "__module__", None) == module_name
        )
        raise WorkloadError(
            f"{kind.lower()} {name!r}: {module_name} has no {kind} named {object_name!r}"
            + (f", it has {', '.join(there)}" if there else "")
            + (f". {taken}" if (taken := _how_to_rename(module_name)) else "")
        )
    return found


def _how_to_rename(module_name: str) -> str:
    """What to do if another module has the name that a file of the user's has, in a sentence."""
    top = module_name.partition(".")[0]
    spec = find_spec(top) if top else None
    if spec is None:
        return ""
    taken_by = Path(spec.origin or next(iter(spec.submodule_search_locations or []), ""))
    for folder in sys.path:
        for path in (Path(folder, f"{top}.py"), Path(folder, top)):
            if path.exists() and path not in (taken_by, taken_by.parent):
                return f"{path} is not found, as its name is taken by {taken_by}: rename it"
    return ""


def _how_to_install(error: BaseException) -> str:
    """The extra of evertrain that brings the missing module, in a sentence."""
    missing = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if extra := _EXTRAS.get(missing):
        return f" It needs {missing}: pip install 'evertrain[{extra}]'."
    return ""
