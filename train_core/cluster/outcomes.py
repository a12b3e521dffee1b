"""How a call on a worker settles, and which of several failures caused the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from train_core.errors import AttemptLostError, EvertrainError, ResourceError


class SilentWorkerError(ConnectionError):
    """A worker's process no longer answers: it was suspended, or is stuck in a library."""


class TerminatedWorkerError(ConnectionError):
    """A worker's process got SIGTERM: its pod is evicted, or its machine is wanted."""


class DiedAtStartError(ConnectionError):
    """Workers died before they were ranks, or did not start in time."""

    def __init__(self, slots: Collection[int], cause: str) -> None:
        super().__init__(slots, cause)
        self.slots = slots

    def __str__(self) -> str:
        return str(self.args[1])


@dataclass(frozen=True)
class Returned:
    """The function returned."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """The function raised; its worker lives."""

    error: Exception


@dataclass(frozen=True)
class Died:
    """The worker's process ended or no longer answers."""

    cause: Exception


@dataclass(frozen=True)
class Running:
    """The function still ran when another call had failed."""


Failure = Raised | Died
Outcome = Returned | Failure | Running


def failure_of(error: Exception) -> Failure:
    """The failure of a call whose result Ray gives as this error."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        error = error.cause
    # A RayTaskError is what the function raised; all others are about a worker, a node or Ray.
    is_rays = isinstance(error, RayError) and not isinstance(error, RayTaskError)
    return Died(error) if is_rays else Raised(error)


def values(outcomes: Mapping[str, Outcome], remedy: str) -> list[Any]:
    """What the calls have returned, in their order. Raises the first cause if one failed.

    `outcomes` are by the worker's name, the first rank first. `remedy` is the advice for a worker
    that ran out of memory.
    """
    if cause := first_cause(outcomes, remedy):
        raise cause
    return [outcome.value for outcome in outcomes.values() if isinstance(outcome, Returned)]


def first_cause(outcomes: Mapping[str, Outcome], remedy: str) -> Exception | None:
    """The failure that the others followed from, as an error of evertrain's; None: none failed.

    A process that ended outranks what the survivors raise; an error of evertrain's (also the
    user's bug) outranks a connection that broke; of two alike the first one counts. A call that
    still runs waits for the one that failed.
    """
    failures = {who: one for who, one in outcomes.items() if isinstance(one, Raised | Died)}
    if not failures:
        return None
    worker = min(failures, key=lambda one: _distance_from_cause(failures[one]))
    return _as_ours(worker, failures[worker], remedy)


def is_survivor(outcome: Outcome) -> bool:
    """Whether the worker lives and has ended its call, with no error but another one's end."""
    match outcome:
        case Returned() | Raised(AttemptLostError()):
            return True
        case Raised() | Died() | Running():
            return False
        case other:
            assert_never(other)


def kept_step(outcomes: Iterable[Outcome]) -> int:
    """The greatest step that survivors keep the state of; 0: they keep none."""
    errors = [one.error for one in outcomes if isinstance(one, Raised)]
    kept = [one.kept_step for one in errors if isinstance(one, AttemptLostError)]
    return max(kept, default=0)


def _distance_from_cause(failure: Failure) -> int:
    match failure:
        case Died(OutOfMemoryError()):
            return 0
        case Died():
            return 1
        case Raised(EvertrainError()):
            return 2
        case Raised(AttemptLostError()):
            return 4
        case Raised():
            return 3
        case other:
            assert_never(other)


def out_of_memory(worker: str, error: OutOfMemoryError, remedy: str) -> ResourceError:
    """The error of a worker that took too much memory: it is not tried again, as it would again."""
    # Ray's own message has forty lines.
    return ResourceError(
        f"{worker} was ended by Ray's memory monitor: {str(error).splitlines()[0]}. "
        f"Take fewer workers on a node, {remedy}"
    )


def _as_ours(worker: str, failure: Failure, remedy: str) -> Exception:
    match failure:
        case Died(OutOfMemoryError() as error):
            return out_of_memory(worker, error, f"fewer data_workers or larger nodes; or {remedy}")
        case Died(error):
            # The last line has the reason: how the process ended, or what its start raised.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            message = " ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
            # Ray's list of what may have been the cause says the same of every death.
            message, _, _ = message.partition(" Some common causes include")
            return ConnectionError(f"{worker} died: {type(error).__name__}: {message}")
        case Raised(AttemptLostError() as error):
            # All that is known of the death of another one.
            return ConnectionError(str(error))
        case Raised(error):
            return error
        case other:
            assert_never(other)
