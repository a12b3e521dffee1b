"""Errors as JSON, so that another process can raise the same error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from train_core.errors import (
    CheckedOnlyError,
    CheckpointError,
    ConfigError,
    DataError,
    EvertrainError,
    FencedError,
    GaveUpError,
    HiddenLoginError,
    JobEndedError,
    NotFiniteError,
    NothingBegunError,
    ResourceError,
    RunBusyError,
    RunConflictError,
    StageError,
    StoppedError,
    StorageError,
    TrackingError,
    UnchangedError,
    UnsavedError,
    UserCodeError,
    WorkloadError,
    of_stage,
)

FAILED = 3
"""The exit code of an isolated call that raised an error, and described it on its stdout."""

# A message, and whatever else a raise statement gave.
_Message = tuple[str | int | float | None, ...]
_Stage = tuple[str, str, str]

_TRAVELLING: Mapping[type[EvertrainError], Any] = {
    EvertrainError: _Message,
    ConfigError: _Message,
    WorkloadError: _Message,
    DataError: _Message,
    ResourceError: _Message,
    TrackingError: _Message,
    StorageError: _Message,
    CheckpointError: _Message,
    HiddenLoginError: tuple[str],
    RunConflictError: tuple[str, dict[str, tuple[object, object]]],
    RunBusyError: tuple[str, str],
    NothingBegunError: _Message,
    CheckedOnlyError: tuple[str],
    UnchangedError: tuple[str] | tuple[str, int | None],
    StoppedError: tuple[str, int],
    FencedError: tuple[int, int],
    UnsavedError: tuple[float, int, str | None, str],
    NotFiniteError: tuple[int, float, str | None, str],
    StageError: _Stage,
    JobEndedError: _Stage,
    GaveUpError: _Stage,
    UserCodeError: _Stage,
}
"""The errors that another process can raise again, with the types of their facts."""
_BY_NAME = {kind.__name__: kind for kind in _TRAVELLING}


def describe(stage: str, error: BaseException) -> dict[str, Any]:
    """The error as JSON, from which `rebuild` makes it again in another process."""
    # Ray wraps the error that a task raised.
    cause = getattr(error, "cause", None)
    error = cause if isinstance(cause, Exception) else error
    if isinstance(error, EvertrainError):
        reduced = error.__reduce__()
        assert not isinstance(reduced, str)
        # A user's subclass is described as the nearest class of ours, as its module may be missing
        # there.
        ours = next(kind for kind in type(error).__mro__ if kind in _TRAVELLING)
        return {"type": ours.__name__, "facts": [_as_json(fact) for fact in reduced[1]]}
    return describe(stage, of_stage(stage, error))


def _as_json(fact: object) -> object:
    """The fact, or its text: what a user's code raises may hold anything."""
    try:
        json.dumps(fact)
    except (TypeError, ValueError):
        return str(fact)
    return fact


def rebuild(described: object) -> EvertrainError:
    """The error that was described. An error of another library becomes a StageError.

    A document that does not describe an error becomes a StageError that shows it: the stage
    failed for an unknown reason.
    """
    match described:
        case {"type": str(name), "facts": [*facts]} if name in _BY_NAME:
            kind = _BY_NAME[name]
        case {"type": str(name)} if name not in _BY_NAME:
            return StageError("error", f"an error of unknown type {name!r}: {described!r}")
        case _:
            return StageError("error", f"an error without type or facts: {described!r}")
    try:
        return kind(*TypeAdapter(_TRAVELLING[kind]).validate_python(facts))
    except ValidationError:
        return StageError("error", f"a {name} whose facts do not fit: {described!r}")
