"""The failures of workers, and the one that caused the others."""

from __future__ import annotations

from collections.abc import Mapping

from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from train_core.errors import EvertrainError, ResourceError


class SilentWorkerError(ConnectionError):
    """A worker's process no longer answers: it was suspended, or is stuck in a library."""


def raised_by(error: Exception) -> Exception:
    """The error that the worker's function raised, without Ray's wrapping."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return error.cause
    return error


def is_death(error: Exception) -> bool:
    """Whether the worker's process ended or no longer answers."""
    # A RayTaskError is what the function raised; all others are about a worker, a node or Ray.
    is_rays = isinstance(error, RayError) and not isinstance(error, RayTaskError)
    return is_rays or isinstance(error, SilentWorkerError)


def first_cause(failures: Mapping[str, Exception], remedy: str) -> Exception:
    """The failure that the others followed from, as an error of evertrain's.

    `failures` are by the worker's name, the first rank first. A process that ended outranks what
    the survivors raise; an error of evertrain's (also the user's bug) outranks a connection that
    broke; of two alike the first one counts. `remedy` is the advice for a worker that ran out of
    memory.
    """
    worker = min(failures, key=lambda one: _distance_from_cause(failures[one]))
    return _as_ours(worker, failures[worker], remedy)


def _distance_from_cause(error: Exception) -> int:
    if isinstance(error, OutOfMemoryError):
        return 0
    if is_death(error):
        return 1
    return 2 if isinstance(error, EvertrainError) else 3


def _as_ours(worker: str, error: Exception, remedy: str) -> Exception:
    if isinstance(error, OutOfMemoryError):
        # Not tried again, as it would fail again. Ray's own message has forty lines.
        return ResourceError(
            f"{worker} was ended by Ray's memory monitor: {str(error).splitlines()[0]}. "
            f"Take fewer workers on a node, fewer data_workers or larger nodes; or {remedy}"
        )
    if is_death(error):
        # The last line has the reason: how the process ended, or what its start raised.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = " ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
        return ConnectionError(f"{worker} died: {type(error).__name__}: {message}")
    return error
